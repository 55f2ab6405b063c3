package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// newStore is an empty store for several processes: a directory; or, where GRANARY_S3SERVER
// names the server program (localstack/s3server), a bucket on a server of its own, reached
// by the driver that GRANARY_S3DRIVER says: s3 (the default) or minio.
func newStore(t testing.TB) string {
	t.Helper()
	if os.Getenv("GRANARY_S3SERVER") == "" {
		return "dir:" + t.TempDir()
	}
	return startS3(t, freeAddr(t)).url(os.Getenv("GRANARY_S3DRIVER"))
}

// s3Server is a server of S3 with one bucket in a directory.
type s3Server struct {
	t      testing.TB
	at     string
	dir    string
	inside []string // as role.inside
	cmd    *exec.Cmd
}

const s3Bucket = "granary-e2e"

// startS3 starts a server that listens at an address, and ends it with the test. Tests that
// need one, and not just any store, are skipped where GRANARY_S3SERVER names none.
func startS3(t testing.TB, at string, inside ...string) *s3Server {
	t.Helper()
	s := &s3Server{t: t, at: at, dir: t.TempDir(), inside: inside}
	t.Setenv("AWS_ACCESS_KEY_ID", "granarytest") // of the processes that are started
	t.Setenv("AWS_SECRET_ACCESS_KEY", "granarytestsecret")
	t.Cleanup(s.kill)
	s.start()
	return s
}

// url is the store for processes that use a driver: s3 (also for "") or minio.
func (s *s3Server) url(driver string) string {
	if driver == "minio" {
		return "minio://" + s.at + "/" + s3Bucket + "/e2e?region=us-east-1"
	}
	return "s3://" + s3Bucket + "/e2e?region=us-east-1&endpoint=http://" + s.at
}

// start starts the server on its directory, and waits until it serves.
func (s *s3Server) start() {
	s.t.Helper()
	program := need(s.t, "GRANARY_S3SERVER", "the program of localstack/s3server (go build -C localstack/s3server -o PROGRAM .)")
	args := append(append([]string(nil), s.inside...), program, "--listen", s.at, "--dir", s.dir, "--bucket", s3Bucket)
	s.cmd = exec.Command(args[0], args[1:]...)
	s.cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+os.Getenv("AWS_ACCESS_KEY_ID"), "ROOT_SECRET_KEY="+os.Getenv("AWS_SECRET_ACCESS_KEY"))
	s.cmd.Stderr = os.Stderr
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		answer, err := http.Get("http://" + s.at + "/health")
		if err == nil {
			answer.Body.Close()
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s does not answer on %s: %v", program, s.at, err)
		}
	}
}

// kill is kill -9: what was answered is there after the next start.
func (s *s3Server) kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

func (s *s3Server) signal(what syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(what); err != nil {
		s.t.Fatal(err)
	}
}

// pause makes it a server that accepts connections and answers nothing.
func (s *s3Server) pause()  { s.signal(syscall.SIGSTOP) }
func (s *s3Server) resume() { s.signal(syscall.SIGCONT) }
