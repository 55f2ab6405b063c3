package s3test

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Real starts a real S3 server for the length of a test and returns its "host:port": the
// program that the environment variable GRANARY_S3SERVER names (localstack/s3server of this
// repository), on a directory of its own with the bucket BucketName. Without the variable the
// test is skipped, or fails if GRANARY_REQUIRE is set.
func Real(t testing.TB) (host string) {
	t.Helper()
	program := os.Getenv("GRANARY_S3SERVER")
	if program == "" {
		const why = "GRANARY_S3SERVER is not set: it names the server built by: cd localstack/s3server && go build -o /tmp/s3server ."
		if os.Getenv("GRANARY_REQUIRE") != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host = l.Addr().String()
	l.Close()
	cmd := exec.Command(program, "--listen", host, "--dir", t.TempDir(), "--bucket", BucketName)
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+accessKey, "ROOT_SECRET_KEY="+secretKey)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for range 200 {
		answer, err := http.Get("http://" + host + "/health")
		if err == nil {
			answer.Body.Close()
			return host
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("%s did not answer on %s", program, host)
	return ""
}
