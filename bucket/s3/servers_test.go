package s3

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"go.uber.org/goleak"

	"github.com/seed46cd37a8/atoll/bucket"
	"github.com/seed46cd37a8/atoll/bucket/buckettest"
	"github.com/seed46cd37a8/atoll/internal/testenv"
)

func TestMain(m *testing.M) {
	// Whatever this machine has for AWS is not for tests.
	for _, name := range []string{"AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3",
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		os.Unsetenv(name)
	}
	os.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	os.Setenv("AWS_CONFIG_FILE", os.DevNull)
	os.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
	goleak.VerifyTestMain(m)
}

// bucketOf is the name of every test's bucket.
const bucketOf = "atoll-test"

func keys(context.Context) (Credentials, error) {
	return Credentials{AccessKey: "testak", SecretKey: "testsecret1"}, nil
}

// to is how tests open a bucket at endpoint.
func to(endpoint string) Options {
	return Options{
		Bucket: bucketOf, Endpoint: endpoint, PathStyle: true, Credentials: keys, PartSize: minPart, Backoff: 10 * time.Millisecond,
	}
}

func open(t testing.TB, opts Options) *Bucket {
	t.Helper()
	b, err := Open(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// serve starts a server until the test ends, and returns its endpoint.
func serve(t testing.TB, program string, env []string, args func(address, dir string) []string) string {
	t.Helper()
	path := testenv.S3Server(t, program)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args(address, data)...)
	cmd.Env = append(os.Environ(), env...)
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
	endpoint := "http://" + address
	for deadline := time.Now().Add(30 * time.Second); ; {
		select {
		case err := <-ended:
			ended <- err
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("%s ended: %v\n%s", program, err, text)
		case <-time.After(10 * time.Millisecond):
		}
		if c, err := net.Dial("tcp", address); err == nil {
			c.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not answer at %s", program, address)
		}
	}
	b := open(t, to(endpoint))
	if _, err := b.client.CreateBucket(context.Background(), &s3.CreateBucketInput{Bucket: &b.name}); err != nil {
		t.Fatalf("CreateBucket: %v", err)
	}
	return endpoint
}

// versity is a server that keeps what S3 promises, in a directory.
func versity(t testing.TB) string {
	return serve(t, "versitygw", []string{"ROOT_ACCESS_KEY=testak", "ROOT_SECRET_KEY=testsecret1"}, func(address, dir string) []string {
		return []string{"--port", address, "--quiet", "posix", dir}
	})
}

// fakes3 is one that checks no signatures, and no conditions of objects in parts.
func fakes3(t testing.TB) string {
	return serve(t, "gofakes3", nil, func(address, _ string) []string {
		return []string{"-backend", "memory", "-host", address}
	})
}

// uploads lists objects whose parts are there, and that are not.
func uploads(b *Bucket) func(*testing.T, string) []string {
	return func(t *testing.T, prefix string) []string {
		t.Helper()
		out, err := b.client.ListMultipartUploads(context.Background(), &s3.ListMultipartUploadsInput{Bucket: &b.name, Prefix: &prefix})
		b.Close() // for who counts goroutines
		if codeOf(err) == codeNoUpload {
			return nil
		}
		if err != nil {
			t.Errorf("ListMultipartUploads: %v", err)
			return nil
		}
		var all []string
		for _, u := range out.Uploads {
			all = append(all, fmt.Sprint(*u.Key, " ", *u.UploadId))
		}
		return all
	}
}

const nestedPromise = "there can be an object at a key, and others below it"

func TestVersityGW(t *testing.T) {
	opts := to(versity(t))
	buckettest.Run(t, func(t *testing.T) bucket.Bucket { return open(t, opts) },
		buckettest.Leftovers(uploads(open(t, opts))),
		buckettest.Except(nestedPromise, "it keeps objects in directories"))
}

// All objects in parts, and over a way that fails now and then.
func TestVersityGWInParts(t *testing.T) {
	p := newProxy(t, versity(t))
	opts := to(p.endpoint)
	p.everyNth(7, http.StatusServiceUnavailable)
	buckettest.Run(t, func(t *testing.T) bucket.Bucket { return open(t, opts).InParts() },
		buckettest.Leftovers(uploads(open(t, opts))),
		buckettest.Except(nestedPromise, "it keeps objects in directories"),
		buckettest.Except("a list is sorted, and has all", "takes too long in parts"),
		buckettest.Except("many objects are removed at once", "takes too long in parts"))
}

func TestGoFakeS3(t *testing.T) {
	opts := to(fakes3(t))
	const why = "it does not look at conditions of objects in parts"
	buckettest.Run(t, func(t *testing.T) bucket.Bucket { return open(t, opts) },
		buckettest.Leftovers(uploads(open(t, opts))),
		buckettest.Except("conditions hold", why),
		buckettest.Except("a large object takes little memory", "it has another tag when it has been put together than was said then"),
		buckettest.Except("a writer can rely on conditions, says CheckConditions", why))
}

func BenchmarkVersityGW(b *testing.B) {
	s := open(b, to(versity(b)))
	text := make([]byte, 4<<10)
	b.Run("Put4K", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			put(b, s, fmt.Sprint("k", i%100), string(text))
		}
	})
	b.Run("Stat", func(b *testing.B) {
		put(b, s, "k", "x")
		for b.Loop() {
			if _, err := s.Stat(b.Context(), "k"); err != nil {
				b.Fatal(err)
			}
		}
	})
}
