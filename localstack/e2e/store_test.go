package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"
)

// newStore is an empty store for several processes: a directory; or, where GRANARY_S3SERVER
// names the server program (localstack/s3server), a bucket on a server of its own, reached
// by the driver that GRANARY_S3DRIVER says: s3 (the default) or minio.
func newStore(t testing.TB) string {
	t.Helper()
	program := os.Getenv("GRANARY_S3SERVER")
	if program == "" {
		return "dir:" + t.TempDir()
	}
	const bucket, key, secret = "granary-e2e", "granarytest", "granarytestsecret"
	at := freeAddr(t)
	cmd := exec.Command(program, "--listen", at, "--dir", t.TempDir(), "--bucket", bucket)
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+key, "ROOT_SECRET_KEY="+secret)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Setenv("AWS_ACCESS_KEY_ID", key) // of the processes that are started
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		answer, err := http.Get("http://" + at + "/health")
		if err == nil {
			answer.Body.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not answer on %s: %v", program, at, err)
		}
	}
	if os.Getenv("GRANARY_S3DRIVER") == "minio" {
		return "minio://" + at + "/" + bucket + "/e2e?region=us-east-1"
	}
	return "s3://" + bucket + "/e2e?region=us-east-1&endpoint=http://" + at
}
