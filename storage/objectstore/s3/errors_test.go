package s3

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/tests3"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// openFake opens a bucket at a server that answers as f does.
func openFake(t *testing.T, f http.HandlerFunc) *Bucket {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	opts := testOptions(server.URL)
	opts.Attempts = 2
	return openBucket(t, opts)
}

// callAll calls every method and returns the errors.
func callAll(ctx context.Context, b *Bucket) map[string]error {
	errs := map[string]error{}
	_, errs["Put"] = b.Put(ctx, "k", strings.NewReader("x"), 1, objectstore.Condition{})
	_, errs["Put in parts"] = b.InParts().Put(ctx, "k", strings.NewReader("x"), 1, objectstore.Condition{})
	_, _, errs["Get"] = b.Get(ctx, "k", 0, -1)
	for _, errs["List"] = range b.List(ctx, "") {
	}
	errs["Delete"] = b.Delete(ctx, "k")
	errs["Delete of many"] = b.Delete(ctx, "k", "l")
	errs["Sweep"] = b.Sweep(ctx, "", 0)
	return errs
}

func TestErrors(t *testing.T) {
	for _, tt := range []struct {
		status int
		code   string
		region string
		want   atoll.Kind
		says   string
	}{
		{404, "NoSuchBucket", "", atoll.ErrNotExist, `no bucket "atoll-test"`},
		{403, "AccessDenied", "", atoll.ErrDenied, "policy"},
		{403, "InvalidAccessKeyId", "", atoll.ErrDenied, "access key"},
		{403, "SignatureDoesNotMatch", "", atoll.ErrDenied, "secret key"},
		{403, "RequestTimeTooSkewed", "", atoll.ErrDenied, "clocks"},
		{400, "ExpiredToken", "", atoll.ErrDenied, "have expired"},
		{301, "PermanentRedirect", "eu-west-1", atoll.ErrInvalid, "region eu-west-1"},
		{400, "AuthorizationHeaderMalformed", "eu-west-1", atoll.ErrInvalid, "region eu-west-1"},
		{307, "TemporaryRedirect", "", atoll.ErrInvalid, "its region"},
		{503, "SlowDown", "", atoll.ErrUnavailable, "busy"},
		{507, "XMinioStorageFull", "", atoll.ErrExhausted, "as planned"},
		{400, "EntityTooLarge", "", atoll.ErrExhausted, "as planned"},
		{501, "NotImplemented", "", atoll.ErrUnsupported, "doesn't support this request"},
		{418, "Teapot", "", atoll.ErrInvalid, "Teapot"},
	} {
		t.Run(tt.code, func(t *testing.T) {
			b := openFake(t, func(w http.ResponseWriter, r *http.Request) {
				if tt.region != "" {
					w.Header().Set("X-Amz-Bucket-Region", tt.region)
				}
				w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
				w.Header().Set("Content-Type", "application/xml")
				w.WriteHeader(tt.status)
				fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>as planned</Message></Error>`, tt.code)
			})
			for what, err := range callAll(t.Context(), b) {
				wantKind(t, what, err, tt.want)
				if err != nil && !strings.Contains(err.Error(), tt.says) {
					t.Errorf("%s: %v, want something with %q", what, err, tt.says)
				}
			}
		})
	}
}

// Errors tell that a server doesn't speak S3, or is unreachable.
func TestEndpointsThatAreNone(t *testing.T) {
	web := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(status)
			fmt.Fprint(w, "<!doctype html><html><head><title>Welcome<br></head><body>")
		}
	}
	// Answers that don't show whether the server speaks S3.
	vague := map[string]bool{
		"Delete at a web site": true, "Delete at nothing": true, "Delete of many at nothing": true, "List at nothing": true, "Sweep at nothing": true,
	}
	for what, handler := range map[string]http.HandlerFunc{
		"a web site": web(200), "one without such a page": web(404), "one of text": http.NotFound, "nothing": func(http.ResponseWriter, *http.Request) {},
	} {
		b := openFake(t, handler)
		for method, err := range callAll(t.Context(), b) {
			method += " at " + what
			if vague[method] {
				continue
			}
			wantKind(t, method, err, atoll.ErrUnavailable)
			if err != nil && !strings.Contains(err.Error(), "endpoint") {
				t.Errorf("%s: %v", method, err)
			}
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	opts := testOptions("http://" + address)
	opts.Attempts = 2
	for method, err := range callAll(t.Context(), openBucket(t, opts)) {
		wantKind(t, method, err, atoll.ErrUnavailable)
		if err != nil && !strings.Contains(err.Error(), "does not answer") {
			t.Errorf("%s: %v", method, err)
		}
	}
	plain := httptest.NewServer(web(200))
	defer plain.Close()
	opts.Endpoint = strings.Replace(plain.URL, "http:", "https:", 1)
	_, err = openBucket(t, opts).Stat(t.Context(), "k")
	wantKind(t, "Stat by TLS where there is none", err, atoll.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "does not speak TLS") {
		t.Errorf("Stat by TLS where there is none: %v", err)
	}
	opts.Endpoint = "https://no-such-host.invalid"
	_, err = openBucket(t, opts).Stat(t.Context(), "k")
	wantKind(t, "Stat of no host", err, atoll.ErrUnavailable)
}

func TestOpen(t *testing.T) {
	change := func(f func(*Options)) Options {
		o := testOptions("https://s3.example.org")
		f(&o)
		return o
	}
	none := filepath.Join(t.TempDir(), "none.pem")
	if err := os.WriteFile(none, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		what string
		opts Options
		says string // "" if the options are valid
	}{
		{"all", change(func(*Options) {}), ""},
		{"invalid bucket name", change(func(o *Options) { o.Bucket = "" }), "name"},
		{"a path", change(func(o *Options) { o.Bucket = "../x" }), "name"},
		{"no region", Options{Bucket: "b-b", Credentials: testCredentials}, "region"},
		{"a region", Options{Bucket: "b-b", Region: "eu-west-1"}, ""},
		{"plain", change(func(o *Options) { o.Endpoint = "http://s3.example.org" }), "TLS"},
		{"plain elsewhere", change(func(o *Options) { o.Endpoint = "http://10.0.0.1:9000" }), "TLS"},
		{"plain that looks local", change(func(o *Options) { o.Endpoint = "http://localhost.example.org" }), "TLS"},
		{"plain, allowed", change(func(o *Options) { o.Endpoint, o.PlainHTTP = "http://s3.example.org", true }), ""},
		{"plain and local", change(func(o *Options) { o.Endpoint = "http://localhost:9000" }), ""},
		{"plain and local, 6", change(func(o *Options) { o.Endpoint = "http://[::1]:9000" }), ""},
		{"plain and local, 4", change(func(o *Options) { o.Endpoint = "http://127.1.2.3" }), ""},
		{"no scheme", change(func(o *Options) { o.Endpoint = "s3.example.org" }), "https://"},
		{"another", change(func(o *Options) { o.Endpoint = "ftp://s3.example.org" }), "https://"},
		{"credentials in it", change(func(o *Options) { o.Endpoint = "https://a:b@s3.example.org" }), "credentials"},
		{"small parts", change(func(o *Options) { o.PartSize = 1 << 20 }), "part size"},
		{"no certificates", change(func(o *Options) { o.CA = none }), "certificates"},
		{"no file", change(func(o *Options) { o.CA = none + "x" }), "certificates"},
	} {
		b, err := Open(t.Context(), tt.opts)
		if err == nil {
			b.Close()
		}
		if tt.says == "" && err != nil || tt.says != "" && (atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: %v, want something with %q", tt.what, err, tt.says)
		}
		if err != nil && strings.Contains(err.Error(), "a:b@") {
			t.Errorf("%s: %v", tt.what, err)
		}
	}
	t.Setenv("AWS_ENDPOINT_URL", "http://s3.example.org")
	_, err := Open(t.Context(), Options{Bucket: "b-b", Region: "eu-west-1"})
	wantKind(t, "plain, of the environment", err, atoll.ErrInvalid)
	if got := openBucket(t, testOptions("https://s3.example.org")).String(); got != "s3://"+tests3.Bucket {
		t.Errorf("its URL is %s", got)
	}
}

func TestCredentials(t *testing.T) {
	endpoint := tests3.Versity(t)
	opts := testOptions(endpoint)
	opts.Attempts = 2
	opts.Credentials = nil
	for method, err := range callAll(t.Context(), openBucket(t, opts)) {
		wantKind(t, method+" without credentials", err, atoll.ErrDenied)
		if err != nil && !strings.Contains(err.Error(), "AWS_ACCESS_KEY_ID") {
			t.Errorf("%s: %v", method, err)
		}
	}
	lost := errors.New("the file is not there")
	opts.Credentials = func(context.Context) (Credentials, error) { return Credentials{}, lost }
	if _, err := openBucket(t, opts).Stat(t.Context(), "k"); !errors.Is(err, lost) || atoll.KindOf(err) != atoll.ErrDenied {
		t.Errorf("Stat with credentials that cannot be read: %v", err)
	}
	for says, c := range map[string]Credentials{"secret key": {AccessKey: "testak", SecretKey: "wrong-1"}, "access key": {AccessKey: "unknown", SecretKey: "testsecret1"}} {
		opts.Credentials = func(context.Context) (Credentials, error) { return c, nil }
		err := openBucket(t, opts).Delete(t.Context(), "k")
		wantKind(t, "Delete with a wrong "+says, err, atoll.ErrDenied)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), c.SecretKey) {
			t.Errorf("Delete with a wrong %s: %v", says, err)
		}
	}
	opts.Credentials = nil
	t.Setenv("AWS_ACCESS_KEY_ID", "testak")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "testsecret1")
	putText(t, openBucket(t, opts), "k", "x")
	opts.Bucket = "another"
	_, err := openBucket(t, opts).Put(t.Context(), "k", strings.NewReader("x"), 1, objectstore.Condition{})
	wantKind(t, "Put into no bucket", err, atoll.ErrNotExist)
	if err == nil || !strings.Contains(err.Error(), `"another"`) {
		t.Errorf("Put into no bucket: %v", err)
	}
	_, err = openBucket(t, opts).Stat(t.Context(), "k")
	wantKind(t, "Stat in no bucket", err, atoll.ErrNotExist)
}

// Over TLS, too, bodies are signed, and only the right certificate is accepted.
func TestTLS(t *testing.T) {
	var signed, body string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		signed = r.Header.Get("X-Amz-Content-Sha256")
		text, _ := io.ReadAll(r.Body)
		body = string(text)
		w.Header().Set("ETag", `"tag"`)
	}))
	defer server.Close()
	opts := testOptions(server.URL)
	_, err := openBucket(t, opts).Stat(t.Context(), "k")
	wantKind(t, "Stat", err, atoll.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "CA") {
		t.Errorf("Stat: %v", err)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}
	if err := os.WriteFile(ca, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	opts.CA = ca
	putText(t, openBucket(t, opts), "k", "text")
	sum := sha256.Sum256([]byte("text"))
	if body != "text" || signed != hex.EncodeToString(sum[:]) {
		t.Errorf("sent %q, signed as %q", body, signed)
	}
}

// A service may omit the length of a body, or lie about it.
func TestAnswersThatDoNotFit(t *testing.T) {
	var answer func(w http.ResponseWriter, r *http.Request)
	b := openFake(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"tag"`)
		answer(w, r)
	})
	answer = func(w http.ResponseWriter, r *http.Request) { // chunked, where any chunk may be the last
		_ = http.NewResponseController(w).Flush()
		fmt.Fprint(w, "text")
	}
	_, err := getText(t, b, "k")
	wantKind(t, "Get of no length", err, atoll.ErrUnavailable)
	answer = func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "all of the text") }
	_, _, err = b.Get(t.Context(), "k", 2, 3)
	wantKind(t, "Get of a part where there are none", err, atoll.ErrUnsupported)
	answer = func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Range") != "" {
			w.Header().Set("Content-Length", "996")
			w.Header().Set("Content-Range", "bytes 4-999/1000")
			w.WriteHeader(http.StatusPartialContent)
			return
		}
		w.Header().Set("Content-Length", "1000")
		fmt.Fprint(w, "text")
	}
	start := time.Now()
	got, err := getText(t, b, "k")
	wantKind(t, "Get of less than was said", err, atoll.ErrUnavailable)
	if got != "text" || errors.Is(err, io.EOF) || time.Since(start) > testenv.Scale(10*time.Second) {
		t.Errorf("Get of less than was said: %q, %v", got, err)
	}
	for what, keys := range map[string][]string{"back": {"b", "a"}, "twice": {"a", "a"}, "like a file system": {"a/b", "a-b"}} {
		answer = func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, `<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>`)
			for _, key := range keys {
				fmt.Fprintf(w, "<Contents><Key>%s</Key><Size>1</Size><ETag>x</ETag></Contents>", key)
			}
			fmt.Fprint(w, "</ListBucketResult>")
		}
		var err error
		for _, err = range b.List(t.Context(), "") {
		}
		wantKind(t, "List that goes "+what, err, atoll.ErrUnsupported)
	}
	answer = func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `<?xml version="1.0"?><ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>a</Key></Contents></ListBucketResult>`)
	}
	err = nil
	for _, err = range b.List(t.Context(), "") {
	}
	wantKind(t, "List that does not end", err, atoll.ErrUnavailable)
}

// Delete repeats keys that failed with a transient error, and reports permanent errors.
func TestDeleteOfSome(t *testing.T) {
	asked := 0
	code := "SlowDown"
	b := openFake(t, func(w http.ResponseWriter, r *http.Request) {
		asked++
		text, _ := io.ReadAll(r.Body)
		fmt.Fprint(w, `<?xml version="1.0"?><DeleteResult>`)
		if asked == 1 || code != "SlowDown" {
			fmt.Fprintf(w, "<Error><Key>b</Key><Code>%s</Code><Message>as planned</Message></Error>", code)
		} else if strings.Contains(string(text), "<Key>a</Key>") {
			t.Errorf("asked to remove again: %s", text)
		}
		fmt.Fprint(w, "</DeleteResult>")
	})
	if err := b.Delete(t.Context(), "a", "b"); err != nil || asked != 2 {
		t.Errorf("Delete: %v, asked %d times", err, asked)
	}
	code = "AccessDenied"
	err := b.Delete(t.Context(), "a", "b")
	wantKind(t, "Delete", err, atoll.ErrDenied)
	if err == nil || !strings.Contains(err.Error(), "/b:") {
		t.Errorf("Delete: %v", err)
	}
}

func TestPartSize(t *testing.T) {
	for _, tt := range []struct{ size, total, want int64 }{
		{5 << 20, 1, 5 << 20}, {5 << 20, 50_000 << 20, 5 << 20}, {5 << 20, 50_000<<20 + 1, 6 << 20}, {16 << 20, 5 << 40, 525 << 20},
	} {
		got := partSize(tt.size, tt.total)
		if got != tt.want || (tt.total+got-1)/got > maxParts {
			t.Errorf("parts of %d bytes are of %d, want %d", tt.total, got, tt.want)
		}
	}
}
