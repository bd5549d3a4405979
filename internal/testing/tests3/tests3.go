// Package tests3 runs servers that speak S3 for tests, each with an empty bucket, and a proxy that
// simulates faults of a network.
package tests3

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// The bucket of every server, and its credentials.
const (
	Bucket    = "atoll-test"
	AccessKey = "testak"
	SecretKey = "testsecret1"
)

// Isolate hides the machine's AWS settings from this process.
func Isolate() {
	for _, name := range []string{"AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3",
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		os.Unsetenv(name)
	}
	os.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	os.Setenv("AWS_CONFIG_FILE", os.DevNull)
	os.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
}

// Versity runs a server that implements the guarantees of S3, until the test ends, and returns its
// endpoint. It needs testenv.S3Servers.
func Versity(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, Bucket), 0o700); err != nil {
		t.Fatal(err)
	}
	return startServer(t, "versitygw", []string{"ROOT_ACCESS_KEY=" + AccessKey, "ROOT_SECRET_KEY=" + SecretKey}, func(address string) []string {
		return []string{"--port", address, "--quiet", "posix", dir}
	})
}

// Fake runs a server that checks no signatures, and no conditions of multipart uploads, until the test
// ends, and returns its endpoint. It needs testenv.S3Servers.
func Fake(t testing.TB) string {
	t.Helper()
	return startServer(t, "gofakes3", nil, func(address string) []string {
		return []string{"-backend", "memory", "-initialbucket", Bucket, "-host", address}
	})
}

// startServer runs a server until the test ends, and returns its endpoint.
func startServer(t testing.TB, program string, env []string, args func(address string) []string) string {
	t.Helper()
	path := testenv.S3Server(t, program)
	const tries = 3 // another program may take the port first
	for try := 1; ; try++ {
		port, err := testenv.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		address := fmt.Sprintf("127.0.0.1:%d", port)
		cmd := exec.Command(path, args(address)...)
		cmd.Env = append(os.Environ(), env...)
		err = startAt(t, cmd, "http://"+address)
		if err == nil {
			return "http://" + address
		}
		if try == tries {
			t.Fatalf("%s ended: %v", program, err)
		}
	}
}

// startAt runs a server until the test ends, and waits until it answers at its endpoint. It returns an
// error if the server ends before that.
func startAt(t testing.TB, cmd *exec.Cmd, endpoint string) error {
	t.Helper()
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: testenv.Scale(5 * time.Second)}
	for deadline := time.Now().Add(testenv.Scale(30 * time.Second)); ; {
		select {
		case err := <-ended:
			ended <- err
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("%v\n%s", err, text)
		case <-time.After(10 * time.Millisecond):
		}
		if resp, err := client.Get(endpoint); err == nil {
			resp.Body.Close()
			return nil
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not answer at %s", cmd.Path, endpoint)
		}
	}
}
