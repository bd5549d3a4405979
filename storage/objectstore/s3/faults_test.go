package s3

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/tests3"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

func putText(t testing.TB, b objectstore.Bucket, key, text string) objectstore.Object {
	t.Helper()
	o, err := b.Put(context.Background(), key, strings.NewReader(text), int64(len(text)), objectstore.Condition{})
	if err != nil {
		t.Fatalf("Put: %v", err)
	}
	return o
}

func getText(t testing.TB, b objectstore.Bucket, key string) (string, error) {
	t.Helper()
	r, _, err := b.Get(context.Background(), key, 0, -1)
	if err != nil {
		return "", err
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	return string(text), err
}

func wantText(t testing.TB, b objectstore.Bucket, key, want string) {
	t.Helper()
	if got, err := getText(t, b, key); got != want || err != nil {
		t.Errorf("%s holds %d bytes, %v; want %d", key, len(got), err, len(want))
	}
}

func wantKind(t testing.TB, what string, err error, want atoll.Kind) {
	t.Helper()
	if atoll.KindOf(err) != want {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

// randomText returns text without repetitions.
func randomText(size int) string {
	seed := [32]byte{1}
	text := make([]byte, size)
	_, _ = rand.NewChaCha8(seed).Read(text)
	return string(text)
}

var (
	small = randomText(300_000)
	large = randomText(2*minPart + 12345)
)

// Requests that fail at first are retried, and have the effect that was asked for.
func TestFaultsAreGotOver(t *testing.T) {
	p := tests3.NewProxy(t, tests3.Versity(t))
	b := openBucket(t, testOptions(p.Endpoint))
	for what, f := range map[string]tests3.Fault{
		"busy":          {Status: http.StatusServiceUnavailable},
		"too many":      {Status: http.StatusTooManyRequests, Code: "TooManyRequests"},
		"internal":      {Status: http.StatusInternalServerError, Code: "InternalError"},
		"cut request":   {CutRequest: 100_000},
		"lost answer":   {Lose: true},
		"reset at once": {Lose: true, Header: func(h http.Header) { h.Set("X-Amz-Content-Sha256", "wrong") }},
	} {
		t.Run(what, func(t *testing.T) {
			for size, text := range map[string]string{"small": small, "large": large} {
				for _, method := range []string{http.MethodPut, http.MethodPost, http.MethodHead, http.MethodGet, http.MethodDelete} {
					if f.CutRequest > 0 && method != http.MethodPut {
						continue
					}
					for key, when := range map[string]objectstore.Condition{"k": {}, "absent": {Absent: true}} {
						p.First(3, method, f)
						o, err := b.Put(t.Context(), key, strings.NewReader(text), int64(len(text)), when)
						if err != nil {
							t.Fatalf("Put of a %s object, %s %s: %v", size, method, key, err)
						}
						stat, err := b.Stat(t.Context(), key)
						if err != nil || stat.Tag != o.Tag || stat.Size != int64(len(text)) {
							t.Errorf("Stat: %+v, %v; Put: %+v", stat, err, o)
						}
						wantText(t, b, key, text)
					}
					for _, err := range b.List(t.Context(), "") {
						if err != nil {
							t.Errorf("List: %v", err)
						}
					}
					if err := b.Delete(t.Context(), "k", "absent"); err != nil {
						t.Errorf("Delete: %v", err)
					}
					if err := b.Delete(t.Context(), "k"); err != nil {
						t.Errorf("Delete: %v", err)
					}
				}
			}
		})
	}
	p.Set(nil)
	// If the answer to CreateMultipartUpload is lost, only Sweep can remove the upload.
	if err := b.Sweep(t.Context(), "", -time.Hour); err != nil {
		t.Errorf("Sweep: %v", err)
	}
	if left := listUploads(b)(t, ""); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestBusyForever(t *testing.T) {
	p := tests3.NewProxy(t, tests3.Versity(t))
	opts := testOptions(p.Endpoint)
	opts.Attempts = 3
	b := openBucket(t, opts)
	p.Set(func(*http.Request, int) tests3.Fault { return tests3.Fault{Status: http.StatusServiceUnavailable} })
	for what, try := range map[string]func() error{
		"Put": func() error {
			_, err := b.Put(t.Context(), "k", strings.NewReader("x"), 1, objectstore.Condition{})
			return err
		},
		"Get":    func() error { _, err := getText(t, b, "k"); return err },
		"Stat":   func() error { _, err := b.Stat(t.Context(), "k"); return err },
		"Delete": func() error { return b.Delete(t.Context(), "k") },
		"List": func() (err error) {
			for _, err = range b.List(t.Context(), "") {
			}
			return err
		},
	} {
		before := p.Requests()
		err := try()
		wantKind(t, what, err, atoll.ErrUnavailable)
		if n := p.Requests() - before; n != 3 {
			t.Errorf("%s: asked %d times, want 3", what, n)
		}
	}
	opts.Backoff = time.Hour
	opts.Attempts = 20
	b = openBucket(t, opts)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := b.Stat(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Stat whose time is over: %v", err)
	}
}

// A broken download resumes, and never looks like the end of the object.
func TestCutAnswers(t *testing.T) {
	p := tests3.NewProxy(t, tests3.Versity(t))
	opts := testOptions(p.Endpoint)
	b := openBucket(t, opts)
	opts.Stall, opts.Attempts = testenv.Scale(300*time.Millisecond), 30 // a busy machine may stall by itself
	hasty := openBucket(t, opts)
	putText(t, b, "k", large)
	for what, tt := range map[string]struct {
		b *Bucket
		f tests3.Fault
	}{
		"a few times": {b, tests3.Fault{CutAnswer: 1 << 20}},
		"stalled":     {hasty, tests3.Fault{CutAnswer: 1 << 20, Stall: true}},
	} {
		t.Run(what, func(t *testing.T) {
			b, f := tt.b, tt.f
			p.First(3, http.MethodGet, f)
			wantText(t, b, "k", large)
			p.First(2, http.MethodGet, f)
			r, o, err := b.Get(t.Context(), "k", 1000, 3<<20)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if got, err := io.ReadAll(r); string(got) != large[1000:1000+3<<20] || err != nil || o.Size != int64(len(large)) {
				t.Errorf("a part: %d bytes, %v", len(got), err)
			}
		})
	}
	t.Run("always, after a while", func(t *testing.T) {
		p.Set(func(*http.Request, int) tests3.Fault { return tests3.Fault{CutAnswer: 1 << 20} })
		wantText(t, b, "k", large) // each attempt makes progress
	})
	t.Run("always, at once", func(t *testing.T) {
		p.Set(func(_ *http.Request, n int) tests3.Fault {
			if n == 1 {
				return tests3.Fault{CutAnswer: 1 << 20}
			}
			return tests3.Fault{Lose: true}
		})
		got, err := getText(t, b, "k")
		wantKind(t, "Get", err, atoll.ErrUnavailable)
		if len(got) == 0 || len(got) > 1<<20 { // a reset may discard bytes that were not read yet
			t.Errorf("read %d bytes", len(got))
		}
	})
	t.Run("was replaced", func(t *testing.T) {
		direct := openBucket(t, testOptions("http://"+p.Target.Host))
		p.First(1, http.MethodGet, tests3.Fault{CutAnswer: 1 << 20, Then: func() { putText(t, direct, "k", "new") }})
		_, err := getText(t, b, "k")
		wantKind(t, "Get", err, atoll.ErrUnavailable)
		if err == nil || !strings.Contains(err.Error(), "replaced") {
			t.Errorf("Get: %v", err)
		}
		putText(t, direct, "k", large)
	})
	t.Run("removed", func(t *testing.T) {
		direct := openBucket(t, testOptions("http://"+p.Target.Host))
		p.First(1, http.MethodGet, tests3.Fault{CutAnswer: 1 << 20, Then: func() {
			if err := direct.Delete(context.Background(), "k"); err != nil {
				t.Error(err)
			}
		}})
		_, err := getText(t, b, "k")
		wantKind(t, "Get", err, atoll.ErrNotExist)
	})
}

// A slow link is fine as long as bytes move.
func TestSlowLink(t *testing.T) {
	p := tests3.NewProxy(t, tests3.Versity(t))
	opts := testOptions(p.Endpoint)
	opts.Stall = max(5*time.Second, testenv.Scale(2500*time.Millisecond))
	b := openBucket(t, opts)
	text := randomText(1 << 20) // in 16 pieces, with 15 pauses between them
	putText(t, b, "k", text)
	p.First(1, http.MethodGet, tests3.Fault{Slow: opts.Stall / 14})
	start := time.Now()
	wantText(t, b, "k", text)
	if took := time.Since(start); took < opts.Stall || p.Requests() != 1 {
		t.Errorf("it took %v and %d requests", took, p.Requests())
	}
	slow := &slowReader{strings.NewReader(small), 10 * time.Millisecond}
	if _, err := b.Put(t.Context(), "k", slow, int64(len(small)), objectstore.Condition{}); err != nil {
		t.Errorf("Put: %v", err)
	}
}

type slowReader struct {
	io.ReadSeeker
	pause time.Duration
}

func (s *slowReader) Read(p []byte) (int, error) {
	time.Sleep(s.pause)
	return s.ReadSeeker.Read(p[:min(len(p), 10_000)])
}

// A Put that was cancelled removes the parts only after the service has answered each request: a
// part that the service stores later would stay.
func TestCancelledPartIsAnswered(t *testing.T) {
	p := tests3.NewProxy(t, tests3.Versity(t))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	aborted := make(chan struct{})
	abort := sync.OnceFunc(func() { close(aborted) })
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Get("partNumber") == "3":
			part, err := io.ReadAll(r.Body)
			if err != nil {
				t.Errorf("read the part: %v", err)
			}
			r.Body = io.NopCloser(bytes.NewReader(part))
			cancel()
			select {
			case <-aborted:
				t.Error("the upload was removed before a part was stored")
			case <-time.After(100 * time.Millisecond):
			}
		case r.Method == http.MethodDelete:
			abort()
		}
		p.ServeHTTP(w, r)
	}))
	defer front.Close()
	b := openBucket(t, testOptions(front.URL))
	if _, err := b.Put(ctx, "k", strings.NewReader(large), int64(len(large)), objectstore.Condition{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Put: %v", err)
	}
	if left := listUploads(b)(t, ""); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// A failed multipart upload removes its parts, whatever the failure.
func TestPartsOfWhatFailed(t *testing.T) {
	p := tests3.NewProxy(t, tests3.Versity(t))
	opts := testOptions(p.Endpoint)
	opts.Attempts = 2
	b := openBucket(t, opts)
	opts.answerTimeout = testenv.Scale(time.Second)
	hasty := openBucket(t, opts)
	old := putText(t, b, "k", "old")
	third := func(f tests3.Fault) func(*http.Request, int) tests3.Fault {
		return func(r *http.Request, _ int) tests3.Fault {
			if r.URL.Query().Get("partNumber") == "3" {
				return f
			}
			return tests3.Fault{}
		}
	}
	noHead := func(r *http.Request, _ int) tests3.Fault { // which would detect it before the upload
		if r.Method == http.MethodHead {
			return tests3.Fault{Status: 403}
		}
		return tests3.Fault{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, tt := range []struct {
		what string
		ctx  context.Context
		plan func(*http.Request, int) tests3.Fault
		when objectstore.Condition
		want atoll.Kind
	}{
		{"a part fails", t.Context(), third(tests3.Fault{Status: 503}), objectstore.Condition{}, atoll.ErrUnavailable},
		{"a part is refused", t.Context(), third(tests3.Fault{Status: 403, Code: "AccessDenied"}), objectstore.Condition{}, atoll.ErrDenied},
		{"the end fails", t.Context(), func(r *http.Request, _ int) tests3.Fault {
			if r.Method == http.MethodPost && isPart(r, "uploadId") {
				return tests3.Fault{Status: 500, Code: "InternalError"}
			}
			return tests3.Fault{}
		}, objectstore.Condition{}, atoll.ErrUnavailable},
		{"others always write", t.Context(), func(r *http.Request, _ int) tests3.Fault {
			if r.Method == http.MethodPost && isPart(r, "uploadId") {
				return tests3.Fault{Status: 409, Code: codeBusy}
			}
			return tests3.Fault{}
		}, objectstore.Condition{Tag: old.Tag}, atoll.ErrConflict},
		{"a condition does not hold", t.Context(), noHead, objectstore.Condition{Absent: true}, atoll.ErrConflict},
		{"another does not", t.Context(), noHead, objectstore.Condition{Tag: "other"}, atoll.ErrConflict},
		{"it is cancelled", ctx, third(tests3.Fault{CutRequest: 1000, Stall: true, Then: cancel}), objectstore.Condition{}, atoll.ErrUnavailable},
	} {
		t.Run(tt.what, func(t *testing.T) {
			b := b
			if tt.ctx == ctx { // the service never answers the part that is cancelled
				b = hasty
			}
			p.Set(tt.plan)
			_, err := b.Put(tt.ctx, "k", strings.NewReader(large), int64(len(large)), tt.when)
			wantKind(t, "Put", err, tt.want)
			p.Set(nil)
			if left := listUploads(b)(t, ""); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
			wantText(t, b, "k", "old")
		})
	}
	p.Set(nil)
	for _, when := range []objectstore.Condition{{Absent: true}, {Tag: "other"}} {
		p.Set(nil)
		_, err := b.Put(t.Context(), "k", strings.NewReader(large), int64(len(large)), when)
		wantKind(t, "Put", err, atoll.ErrConflict)
		if n := p.Requests(); n != 1 {
			t.Errorf("took %d requests, want 1", n)
		}
	}
	// A conflict with another writer may be over at the next attempt.
	busy := 0
	p.Set(func(r *http.Request, _ int) tests3.Fault {
		if r.Method == http.MethodPost && isPart(r, "uploadId") && busy == 0 {
			busy++
			return tests3.Fault{Status: 409, Code: codeBusy}
		}
		return tests3.Fault{}
	})
	if _, err := b.Put(t.Context(), "k", strings.NewReader(large), int64(len(large)), objectstore.Condition{Tag: old.Tag}); err != nil {
		t.Errorf("Put: %v", err)
	}
	wantText(t, b, "k", large)
}

func TestSweep(t *testing.T) {
	b := openBucket(t, testOptions(tests3.Versity(t)))
	var started []string
	for _, key := range []string{"p/a", "p/b", "q/c"} {
		out, err := b.client.CreateMultipartUpload(t.Context(), &s3.CreateMultipartUploadInput{Bucket: &b.name, Key: &key})
		if err != nil {
			t.Fatal(err)
		}
		number := int32(1)
		if _, err := b.client.UploadPart(t.Context(), &s3.UploadPartInput{
			Bucket: &b.name, Key: &key, UploadId: out.UploadId, PartNumber: &number, Body: strings.NewReader("x"),
		}); err != nil {
			t.Fatal(err)
		}
		started = append(started, key+" "+*out.UploadId)
	}
	left := func() []string {
		all := listUploads(b)(t, "")
		slices.Sort(all)
		return all
	}
	if err := objectstore.Sweep(t.Context(), b, "p/", time.Hour); err != nil {
		t.Errorf("Sweep: %v", err)
	}
	if got := left(); !slices.Equal(got, started) {
		t.Errorf("after a Sweep of what is old: %q, want %q", got, started)
	}
	if err := objectstore.Sweep(t.Context(), b, "p/", -time.Minute); err != nil {
		t.Errorf("Sweep: %v", err)
	}
	if got := left(); !slices.Equal(got, started[2:]) {
		t.Errorf("after a Sweep of p/: %q, want %q", got, started[2:])
	}
	if err := objectstore.Sweep(t.Context(), b, "", -time.Minute); err != nil {
		t.Errorf("Sweep: %v", err)
	}
}

// CheckConditions detects services that ignore conditions.
func TestIgnoredConditions(t *testing.T) {
	endpoint := tests3.Fake(t)
	err := objectstore.CheckConditions(t.Context(), openBucket(t, testOptions(endpoint)), "p/")
	wantKind(t, "CheckConditions of what ignores them for parts", err, atoll.ErrUnsupported)
	if err == nil || !strings.Contains(err.Error(), "multipart uploads: of 8") {
		t.Errorf("CheckConditions: %v", err)
	}
	p := tests3.NewProxy(t, endpoint)
	for _, ignored := range []string{"If-None-Match", "If-Match"} {
		p.Set(func(*http.Request, int) tests3.Fault {
			return tests3.Fault{Header: func(h http.Header) { h.Del(ignored) }}
		})
		b := openBucket(t, testOptions(p.Endpoint))
		err := objectstore.CheckConditions(t.Context(), b, "p/")
		wantKind(t, "CheckConditions of what ignores "+ignored, err, atoll.ErrUnsupported)
		t.Log(err)
		for o, err := range b.List(t.Context(), "") {
			t.Errorf("it leaves %+v, %v", o, err)
		}
	}
}

// A write that fails in the middle of its body stores nothing.
func TestReadersOfFailedRequests(t *testing.T) {
	p := tests3.NewProxy(t, tests3.Versity(t))
	b := openBucket(t, testOptions(p.Endpoint))
	for range 20 {
		p.First(2, http.MethodPut, tests3.Fault{CutRequest: int64(1 + rand.IntN(len(small)-1))})
		r := bytes.NewReader([]byte(small))
		if _, err := b.Put(t.Context(), "k", r, int64(len(small)), objectstore.Condition{}); err != nil {
			t.Fatalf("Put: %v", err)
		}
		wantText(t, b, "k", small)
	}
}

// A service may mistake an object that another write has just stored for a directory:
// Put then writes again, unless there really is a directory.
func TestOutrun(t *testing.T) {
	p := tests3.NewProxy(t, tests3.Versity(t))
	b := openBucket(t, testOptions(p.Endpoint))
	large := randomText(12 << 20)
	inTheWay := func(times int) func(*http.Request, int) tests3.Fault {
		return func(r *http.Request, _ int) tests3.Fault {
			end := r.Method == http.MethodPut && !isPart(r, "partNumber") || r.Method == http.MethodPost && isPart(r, "uploadId")
			if !end || times == 0 {
				return tests3.Fault{}
			}
			times--
			return tests3.Fault{Status: 409, Code: codeInTheWay}
		}
	}
	for what, text := range map[string]string{"whole": "new", "in parts": large} {
		t.Run(what, func(t *testing.T) {
			p.Set(nil)
			old := putText(t, b, "k", "old")
			p.Set(inTheWay(1))
			if _, err := b.Put(t.Context(), "k", strings.NewReader(text), int64(len(text)), objectstore.Condition{Tag: old.Tag}); err != nil {
				t.Errorf("Put: %v", err)
			}
			wantText(t, b, "k", text)
			p.Set(inTheWay(maxRestarts))
			_, err := b.Put(t.Context(), "k", strings.NewReader(text), int64(len(text)), objectstore.Condition{})
			wantKind(t, "Put, always outrun", err, atoll.ErrConflict)
			p.Set(inTheWay(1))
			_, err = b.Put(t.Context(), "other", strings.NewReader(text), int64(len(text)), objectstore.Condition{})
			wantKind(t, "Put where there is a directory", err, atoll.ErrUnsupported)
		})
	}
}
