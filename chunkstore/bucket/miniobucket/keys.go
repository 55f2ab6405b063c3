package miniobucket

import (
	"errors"
	"fmt"

	"github.com/granarydb/granary/manifest/errkind"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// findKeys looks where the package doc says. The client would go on without keys, as nobody.
func findKeys() (*credentials.Credentials, error) {
	keys := credentials.NewChainCredentials([]credentials.Provider{
		&credentials.EnvAWS{}, &credentials.EnvMinio{}, &credentials.FileAWSCredentials{},
	})
	value, err := keys.GetWithContext(&credentials.CredContext{})
	if err == nil && (value.AccessKeyID == "" || value.SecretAccessKey == "") {
		err = errors.New("nothing found")
	}
	if err != nil {
		return nil, fmt.Errorf("no keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or MINIO_ROOT_USER and MINIO_ROOT_PASSWORD): %w: %w", errkind.Invalid, err)
	}
	return keys, nil
}
