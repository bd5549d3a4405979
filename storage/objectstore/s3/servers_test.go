package s3

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/tests3"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
	"github.com/seed46cd37a8/atoll/storage/objectstore/objectstoretest"
)

func TestMain(m *testing.M) {
	tests3.Isolate() // the AWS configuration of this machine must not affect tests
	testenv.VerifyTestMain(m)
}

func testCredentials(context.Context) (Credentials, error) {
	return Credentials{AccessKey: tests3.AccessKey, SecretKey: tests3.SecretKey}, nil
}

// testOptions returns the options to open the test bucket at endpoint.
func testOptions(endpoint string) Options {
	return Options{
		Bucket: tests3.Bucket, Endpoint: endpoint, PathStyle: true, Credentials: testCredentials, PartSize: minPart, Backoff: 10 * time.Millisecond,
	}
}

func openBucket(t testing.TB, opts Options) *Bucket {
	t.Helper()
	b, err := Open(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// listUploads returns a function that lists the keys of unfinished uploads.
func listUploads(b *Bucket) func(*testing.T, string) []string {
	return func(t *testing.T, prefix string) []string {
		t.Helper()
		out, err := b.client.ListMultipartUploads(context.Background(), &s3.ListMultipartUploadsInput{Bucket: &b.name, Prefix: &prefix})
		b.Close() // for tests that count goroutines
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
	opts := testOptions(tests3.Versity(t))
	objectstoretest.Run(t, func(t *testing.T) objectstore.Bucket { return openBucket(t, opts) },
		objectstoretest.Leftovers(listUploads(openBucket(t, opts))),
		objectstoretest.Except(nestedPromise, "it keeps objects in directories"))
}

// All objects as multipart uploads, over a connection that fails now and then.
func TestVersityGWInParts(t *testing.T) {
	p := tests3.NewProxy(t, tests3.Versity(t))
	opts := testOptions(p.Endpoint)
	p.EveryNth(7, http.StatusServiceUnavailable)
	objectstoretest.Run(t, func(t *testing.T) objectstore.Bucket { return openBucket(t, opts).InParts() },
		objectstoretest.Leftovers(listUploads(openBucket(t, opts))),
		objectstoretest.Except(nestedPromise, "it keeps objects in directories"),
		objectstoretest.Except("a list is sorted and complete", "takes too long in parts"),
		objectstoretest.Except("many objects are removed at once", "takes too long in parts"))
}

func TestGoFakeS3(t *testing.T) {
	opts := testOptions(tests3.Fake(t))
	const why = "it does not look at conditions of objects in parts"
	objectstoretest.Run(t, func(t *testing.T) objectstore.Bucket { return openBucket(t, opts) },
		objectstoretest.Leftovers(listUploads(openBucket(t, opts))),
		objectstoretest.Except("conditions hold", why),
		objectstoretest.Except("a large object takes little memory", "it has another tag when it has been put together than was said then"),
		objectstoretest.Except("a writer can rely on conditions, says CheckConditions", why))
}

func BenchmarkVersityGW(b *testing.B) {
	s := openBucket(b, testOptions(tests3.Versity(b)))
	text := make([]byte, 4<<10)
	b.Run("Put4K", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			putText(b, s, fmt.Sprint("k", i%100), string(text))
		}
	})
	b.Run("Stat", func(b *testing.B) {
		putText(b, s, "k", "x")
		for b.Loop() {
			if _, err := s.Stat(b.Context(), "k"); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// isPart reports whether a request belongs to a multipart upload.
func isPart(r *http.Request, query string) bool {
	return r.URL.Query().Has(query) && !strings.Contains(r.URL.RawQuery, "list-type")
}
