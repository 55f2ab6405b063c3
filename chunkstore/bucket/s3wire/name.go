package s3wire

import (
	"fmt"
	"net"
	"strings"

	"github.com/granarydb/granary/manifest/errkind"
)

// checkName accepts the names that S3 gives to new buckets.
func checkName(name string) error {
	rule := ""
	switch {
	case len(name) < 3 || len(name) > 63:
		rule = "has 3 to 63 characters"
	case strings.ContainsFunc(name, outsideName):
		rule = "has small letters, digits, '.' and '-' only"
	case strings.Trim(name, ".-") != name:
		rule = "begins and ends with a letter or a digit"
	case strings.Contains(name, "..") || net.ParseIP(name) != nil:
		rule = "is no address and has no '..'"
	default:
		return nil
	}
	return fmt.Errorf("bucket %q: a bucket's name %s: %w", name, rule, errkind.Invalid)
}

func outsideName(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.' || r == '-')
}
