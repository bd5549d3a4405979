//go:build linux

package image

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	. "github.com/seed46cd37a8/atoll/internal/testing/testimage"
)

// noTransport fails the test when something is asked of a registry.
type noTransport struct{ t testing.TB }

func (n noTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	n.t.Errorf("unexpected request: %s %s", req.Method, req.URL)
	return nil, errors.New("no network in this test")
}

// onPath returns a fault that hands requests whose path contains part to h, with
// their number from 1 on; h returns false to let the registry answer.
func onPath(part string, h func(n int, w http.ResponseWriter, req *http.Request) bool) func(http.Handler) http.Handler {
	var n atomic.Int64
	return func(registry http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if strings.Contains(req.URL.Path, part) && h(int(n.Add(1)), w, req) {
				return
			}
			registry.ServeHTTP(w, req)
		})
	}
}

func answerStatus(code int, times int) func(int, http.ResponseWriter, *http.Request) bool {
	return func(n int, w http.ResponseWriter, _ *http.Request) bool {
		if n > times {
			return false
		}
		w.WriteHeader(code)
		return true
	}
}

// resetConnections ends the connection in the middle of the answer, after half the body.
func resetConnections(times int, registry *http.Handler) func(int, http.ResponseWriter, *http.Request) bool {
	return func(n int, w http.ResponseWriter, req *http.Request) bool {
		if n > times {
			return false
		}
		rec := httptest.NewRecorder()
		(*registry).ServeHTTP(rec, req)
		body := rec.Body.Bytes()
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		w.WriteHeader(rec.Code)
		w.Write(body[:len(body)/2])
		w.(http.Flusher).Flush()
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			conn.(*net.TCPConn).SetLinger(0)
			conn.Close()
		}
		return true
	}
}

func TestRetries(t *testing.T) {
	layer := Layer(t, File("f", 0, strings.Repeat("x", 1000)))
	blob := "blobs/" + digestOf(t, layer)
	for _, tt := range []struct {
		name, part string
		fault      func(int, http.ResponseWriter, *http.Request) bool
	}{
		{"500 for the greeting", "/v2/", answerStatus(500, 1)},
		{"500 for a manifest", "manifests/", answerStatus(500, 2)},
		{"503 for a layer", blob, answerStatus(503, 2)},
		{"429 for a manifest", "manifests/", answerStatus(429, 3)},
		{"429 for a layer", blob, answerStatus(429, 3)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			noLeaks(t)
			r := Serve(t)
			ref := r.Push("app:1", New(t, v1.Config{}, layer))
			r.Fault(onPath(tt.part, tt.fault))
			mustGet(t, openStore(t, Options{}), ref)
		})
	}
	for _, part := range []string{"manifests/", blob} {
		t.Run("a connection reset in "+part[:5], func(t *testing.T) {
			r := Serve(t)
			ref := r.Push("app:1", New(t, v1.Config{}, layer))
			var registry http.Handler
			fault := onPath(part, resetConnections(2, &registry))
			r.Fault(func(h http.Handler) http.Handler {
				registry = h
				return fault(h)
			})
			var last atoll.Progress
			if _, err := openStore(t, Options{}).Get(t.Context(), ref, func(p atoll.Progress) { last = p }); err != nil {
				t.Fatal(err)
			}
			if last.Done != last.Total {
				t.Errorf("last report %+v: what came in vain was counted", last)
			}
		})
	}
}

func TestRegistryFailures(t *testing.T) {
	img := simpleImage(t, "x")
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	blob := "blobs/" + digestOf(t, layers[0])
	const often = 1 << 30
	text := func(body string) func(int, http.ResponseWriter, *http.Request) bool {
		return func(_ int, w http.ResponseWriter, _ *http.Request) bool {
			w.Write([]byte(body))
			return true
		}
	}
	for _, tt := range []struct {
		name, part string
		fault      func(int, http.ResponseWriter, *http.Request) bool
		kind       atoll.Kind
		message    string
		requests   int // for part; 0: any number
	}{
		{"404 for a manifest", "manifests/", answerStatus(404, often), atoll.ErrNotExist, "no such image", 1},
		{"404 for a layer", blob, answerStatus(404, often), atoll.ErrNotExist, "", 1},
		{"401", "manifests/", answerStatus(401, often), atoll.ErrDenied, "docker login HOST", 1},
		{"403", "manifests/", answerStatus(403, often), atoll.ErrDenied, "docker login HOST", 1},
		{"401 for the greeting", "/v2/", answerStatus(401, often), atoll.ErrDenied, "docker login HOST", 0},
		{"500 again and again", "manifests/", answerStatus(500, often), atoll.ErrUnavailable, "HOST", attempts},
		{"429 again and again", "manifests/", answerStatus(429, often), atoll.ErrUnavailable, "HOST", attempts},
		{"400", "manifests/", answerStatus(400, often), atoll.ErrInvalid, "HOST", 1},
		{"a page instead of a manifest", "manifests/", text("<html>hello</html>"), atoll.ErrInvalid, "", 1},
		{"another layer", blob, text(strings.Repeat("y", 10)), atoll.ErrInvalid, "damaged", 2},
		{"nothing", blob, text(""), atoll.ErrInvalid, "damaged", 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := Serve(t)
			ref := r.Push("app:1", img)
			var n atomic.Int64
			r.Fault(onPath(tt.part, func(i int, w http.ResponseWriter, req *http.Request) bool {
				n.Add(1)
				return tt.fault(i, w, req)
			}))
			dir := t.TempDir()
			s := openStoreIn(t, dir, Options{})
			_, err := s.Get(t.Context(), ref, nil)
			wantKind(t, "Get", err, tt.kind, strings.ReplaceAll(tt.message, "HOST", r.Host))
			if got := int(n.Load()); tt.requests > 0 && got != tt.requests {
				t.Errorf("%d requests, want %d", got, tt.requests)
			}
			if left, _ := os.ReadDir(s.storePath(rootsDir)); len(left) > 0 {
				t.Errorf("left in %s: %v", rootsDir, left)
			}
			r.Fault(nil)
			mustGet(t, s, ref)
		})
	}
}

// TestDamagedOnTheWay has a layer that is damaged once in transfer.
func TestDamagedOnTheWay(t *testing.T) {
	layer := Layer(t, File("f", 0, "x"))
	size, err := layer.Size()
	if err != nil {
		t.Fatal(err)
	}
	r := Serve(t)
	ref := r.Push("app:1", New(t, v1.Config{}, layer))
	r.Fault(onPath("blobs/"+digestOf(t, layer), func(n int, w http.ResponseWriter, _ *http.Request) bool {
		if n == 1 {
			w.Write(bytes.Repeat([]byte("y"), int(size)))
		}
		return n == 1
	}))
	mustGet(t, openStore(t, Options{}), ref)
}

// TestDownloadInVain checks that the count of fetched bytes excludes failed downloads.
func TestDownloadInVain(t *testing.T) {
	body := strings.Repeat("x", 1000)
	digest, size, err := v1.SHA256(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	d := v1.Descriptor{Digest: digest, Size: size}
	s := openStore(t, Options{})
	path := s.storePath(blobsDir, digestName(digest))
	for name, r := range map[string]io.Reader{
		"a lost connection": io.MultiReader(strings.NewReader(body[:500]), iotest.ErrReader(io.ErrUnexpectedEOF)),
		"too short":         strings.NewReader(body[:500]),
		"too long":          strings.NewReader(body + body),
		"something else":    strings.NewReader(strings.Repeat("y", 1000)),
	} {
		var m meter
		if _, err := s.downloadBlob(r, d, path, &m); err == nil || m.fetched.Load() != 0 {
			t.Errorf("%s: got error %v and counted %d bytes, want an error and none", name, err, m.fetched.Load())
		}
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: kept: %v", name, err)
		}
	}
	var m meter
	f, err := s.downloadBlob(strings.NewReader(body), d, path, &m)
	if err != nil || m.fetched.Load() != size {
		t.Fatalf("got error %v and counted %d bytes, want %d", err, m.fetched.Load(), size)
	}
	f.Close()
}

// TestFailureStopsTheRest has a damaged layer before one that never comes.
func TestFailureStopsTheRest(t *testing.T) {
	noLeaks(t)
	never := Layer(t, File("never", 0, "x"))
	r := Serve(t)
	ref := r.Push("app:1", New(t, v1.Config{}, Layer(t, File("../f", 0, "x")), never))
	r.Fault(onPath("blobs/"+digestOf(t, never), func(_ int, _ http.ResponseWriter, req *http.Request) bool {
		<-req.Context().Done()
		return true
	}))
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(20*time.Second))
	defer cancel()
	_, err := openStore(t, Options{}).Get(ctx, ref, nil)
	wantKind(t, "Get", err, atoll.ErrInvalid, "leads out")
}

// TestDamagedBlob has fetched blobs damaged on disk before they are used again.
func TestDamagedBlob(t *testing.T) {
	layer := Layer(t, File("f", 0, "x"))
	r := Serve(t)
	ref := r.Push("app:1", New(t, v1.Config{}, layer))
	s := openStore(t, Options{})
	img := mustGet(t, s, ref)
	if err := s.Remove(t.Context(), img.Digest, nil); err != nil {
		t.Fatal(err)
	}
	asked := len(r.Gets())
	mustGet(t, s, ref)
	if gets := r.Gets()[asked:]; len(gets) != 1 {
		t.Errorf("with all blobs there %q were fetched, want only the manifest", gets)
	}
	for _, damage := range []func(string) error{
		func(p string) error { return os.Truncate(p, 10) },
		func(p string) error { return os.WriteFile(p, []byte("something else"), 0o600) },
	} {
		if err := s.Remove(t.Context(), img.Digest, nil); err != nil {
			t.Fatal(err)
		}
		h, _ := layer.Digest()
		if err := damage(s.storePath(blobsDir, digestName(h))); err != nil {
			t.Fatal(err)
		}
		asked := len(r.Gets())
		if got := listTree(t, mustGet(t, s, ref).Root); got["f"] != "x" {
			t.Errorf("root holds %v", got)
		}
		if gets := r.Gets()[asked:]; len(gets) != 2 || gets[1] != "blobs/"+h.String() {
			t.Errorf("fetched %q, want the manifest and the damaged layer", gets)
		}
	}
}

// TestDamagedImages has broken images with correct digests.
func TestDamagedImages(t *testing.T) {
	good := Tar(t, File("f", 0, "x"))
	for name, tt := range map[string]struct {
		layer v1.Layer
		kind  atoll.Kind
		text  string
	}{
		"a layer that is no tar":     {fixedLayerOf(t, []byte("this is not a tar stream, and not a short one: "+strings.Repeat("no ", 400)), nil), atoll.ErrInvalid, "tar"},
		"a layer that leads out":     {Layer(t, File("../f", 0, "x")), atoll.ErrInvalid, `"../f": leads out`},
		"a layer cut short":          {fixedLayerOf(t, good[:512], nil), atoll.ErrInvalid, ""},
		"gzip cut short":             {fixedLayerOf(t, gzipBytes(t, good)[:20], nil), atoll.ErrInvalid, "decompress"},
		"gzip with a wrong sum":      {fixedLayerOf(t, flipByte(gzipBytes(t, good), -5), nil), atoll.ErrInvalid, "decompress"},
		"another layer's diff id":    {fixedLayerOf(t, good, []byte("something else")), atoll.ErrInvalid, "instead of"},
		"more than the limit":        {Layer(t, File("f", 0, strings.Repeat("x", 2<<20))), atoll.ErrExhausted, "limit"},
		"a bomb after the tar's end": {fixedLayerOf(t, gzipBytes(t, append(good, make([]byte, 8<<20)...)), append(good, make([]byte, 8<<20)...)), atoll.ErrExhausted, "limit"},
	} {
		t.Run(name, func(t *testing.T) {
			r := Serve(t)
			ref := r.Push("app:1", New(t, v1.Config{}, Layer(t, File("base", 0, "")), tt.layer))
			s := openStore(t, Options{Limit: 1 << 20})
			_, err := s.Get(t.Context(), ref, nil)
			wantKind(t, "Get", err, tt.kind, tt.text)
			if left, _ := os.ReadDir(s.storePath(rootsDir)); len(left) > 0 {
				t.Errorf("left in %s: %v", rootsDir, left)
			}
		})
	}
}

// TestFetchLimit has layers that are below the limit, and together above it:
// none is fetched.
func TestFetchLimit(t *testing.T) {
	noise := func(seed byte) string {
		b := make([]byte, 700<<10)
		rand.NewChaCha8([32]byte{seed}).Read(b)
		return string(b)
	}
	r := Serve(t)
	ref := r.Push("app:1", New(t, v1.Config{}, Layer(t, File("a", 0, noise(1))), Layer(t, File("b", 0, noise(2)))))
	_, err := openStore(t, Options{Limit: 1 << 20}).Get(t.Context(), ref, nil)
	wantKind(t, "Get", err, atoll.ErrExhausted, "limit")
	if gets := r.Gets(); len(gets) != 1 {
		t.Errorf("fetched %q, want only the manifest", gets)
	}
}

func TestManifestSizes(t *testing.T) {
	h := v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("0", 64)}
	for _, tt := range []struct {
		config int64
		layers []int64
		ok     bool
	}{
		{2, []int64{3, 0, 4}, true},
		{2, []int64{math.MaxInt64 - 2}, true},
		{-1, nil, false},
		{maxConfig + 1, nil, false},
		{2, []int64{-1}, false},
		{2, []int64{math.MaxInt64 - 1}, false},
		{0, []int64{math.MaxInt64, 1}, false},
		{0, []int64{math.MaxInt64, math.MaxInt64, 2}, false},
	} {
		m := &v1.Manifest{Config: v1.Descriptor{MediaType: types.OCIConfigJSON, Digest: h, Size: tt.config}}
		for _, size := range tt.layers {
			m.Layers = append(m.Layers, v1.Descriptor{Digest: h, Size: size})
		}
		if err := checkManifest(m); (err == nil) != tt.ok {
			t.Errorf("config %d, layers %d: got %v, want ok %v", tt.config, tt.layers, err, tt.ok)
		}
	}
}

// TestNothingWithoutEnd has an endless layer without content.
func TestNothingWithoutEnd(t *testing.T) {
	var member bytes.Buffer
	if err := gzip.NewWriter(&member).Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var read atomic.Int64
	plain, err := newDecompressor(countingReader{ctx, endless(func(p []byte) int {
		if read.Load() > 1<<20 {
			cancel()
		}
		return copy(p, member.Bytes())
	}), &read})
	if err != nil {
		t.Fatal(err)
	}
	ahead := readAhead(ctx, plain, sha256.New(), 1<<20)
	if _, err := ahead.Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("Read: got %v, want Canceled", err)
	}
	ahead.close()
}

type endless func([]byte) int

func (e endless) Read(p []byte) (int, error) { return e(p), nil }

func gzipBytes(t *testing.T, stream []byte) []byte {
	t.Helper()
	rc, err := LayerOf(t, stream).Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	var buf bytes.Buffer
	if _, err := buf.ReadFrom(rc); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func flipByte(b []byte, at int) []byte {
	b[len(b)+at] ^= 0xff
	return b
}

func TestNoImage(t *testing.T) {
	r := Serve(t)
	chart := mutate.ConfigMediaType(simpleImage(t, "x"), "application/vnd.cncf.helm.config.v1+json")
	_, err := openStore(t, Options{}).Get(t.Context(), r.Push("chart:1", chart), nil)
	wantKind(t, "a chart", err, atoll.ErrInvalid, "not that of an image")
}

func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host := l.Addr().String()
	l.Close()
	_, err = openStore(t, Options{}).Get(t.Context(), host+"/app", nil)
	wantKind(t, "refused", err, atoll.ErrUnavailable, host, "connection refused")

	// People know Docker Hub by another name than its host's.
	hub := answer(func(req *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusUnauthorized, Request: req, Header: http.Header{}, Body: http.NoBody}, nil
	})
	_, err = openStore(t, Options{Transport: hub}).Get(t.Context(), "nobody/nothing", nil)
	wantKind(t, "hub", err, atoll.ErrDenied, "`docker login docker.io`")

	// Plain HTTP is for the loopback interface, whatever an address looks like.
	s := openStore(t, Options{Transport: answer(func(req *http.Request) (*http.Response, error) {
		if req.URL.Scheme != "https" {
			t.Errorf("plain request to %s", req.URL)
		}
		return nil, fmt.Errorf("dial %s: %w", req.URL.Host, http.ErrSchemeMismatch)
	})})
	for _, host := range []string{"10.0.0.1:5000", "192.168.1.1", "registry.example.com", "x.localhost:5000"} {
		_, err = s.Get(t.Context(), host+"/app", nil)
		wantKind(t, host, err, atoll.ErrUnavailable, host)
	}
}

func TestInsecure(t *testing.T) {
	r := Serve(t)
	r.Push("app:1", simpleImage(t, "x"))
	dial := answer(func(req *http.Request) (*http.Response, error) {
		if req.URL.Scheme == "https" {
			return nil, http.ErrSchemeMismatch
		}
		req = req.Clone(req.Context())
		req.URL.Host = r.Host
		return http.DefaultTransport.RoundTrip(req)
	})
	mustGet(t, openStore(t, Options{Transport: dial, Insecure: []string{"registry.example.com"}}), "registry.example.com/app:1")
	mustGet(t, openStore(t, Options{Transport: dial, Insecure: []string{"10.0.0.1:5000"}}), "10.0.0.1:5000/app:1")
	_, err := openStore(t, Options{Transport: dial, Insecure: []string{"10.0.0.1:5000"}}).Get(t.Context(), "10.0.0.1:5001/app:1", nil)
	wantKind(t, "another port", err, atoll.ErrUnavailable, "insecure")
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

type answer func(*http.Request) (*http.Response, error)

func (a answer) RoundTrip(req *http.Request) (*http.Response, error) { return a(req) }

func TestCredentials(t *testing.T) {
	r := Serve(t)
	ref := r.Push("app:1", simpleImage(t, "x"))
	r.Fault(func(registry http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if user, password, _ := req.BasicAuth(); user != "me" || password != "pass" {
				w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			registry.ServeHTTP(w, req)
		})
	})
	s := openStore(t, Options{})
	_, err := s.Get(t.Context(), ref, nil)
	wantKind(t, "without", err, atoll.ErrDenied, "docker login "+r.Host)

	config := t.TempDir()
	auth := fmt.Sprintf(`{"auths":{%q:{"auth":"bWU6cGFzcw=="}}}`, r.Host) // me:pass
	if err := os.WriteFile(filepath.Join(config, "config.json"), []byte(auth), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", config)
	mustGet(t, s, ref)

	other := openStore(t, Options{Keychain: keychain{}})
	mustGet(t, other, ref)
}

type keychain struct{}

func (keychain) Resolve(authn.Resource) (authn.Authenticator, error) {
	return &authn.Basic{Username: "me", Password: "pass"}, nil
}

// TestWaiters has a slow layer: callers that wait for it may leave, and the pull goes
// on until the last has left.
func TestWaiters(t *testing.T) {
	noLeaks(t)
	layer := Layer(t, File("f", 0, "x"))
	r := Serve(t)
	ref := r.Push("app:1", New(t, v1.Config{}, layer))
	asked, gone, release := make(chan struct{}, 10), make(chan struct{}, 10), make(chan struct{})
	r.Fault(onPath("blobs/"+digestOf(t, layer), func(_ int, _ http.ResponseWriter, req *http.Request) bool {
		asked <- struct{}{}
		select {
		case <-release:
			return false
		case <-req.Context().Done():
			gone <- struct{}{}
			return true
		}
	}))
	s := openStore(t, Options{})
	type result struct {
		img *Image
		err error
	}
	get := func(ctx context.Context) chan result {
		c := make(chan result, 1)
		go func() {
			img, err := s.Get(ctx, ref, nil)
			c <- result{img, err}
		}()
		return c
	}
	waiters := func(n int) {
		t.Helper()
		for deadline := time.Now().Add(testenv.Scale(10 * time.Second)); ; time.Sleep(time.Millisecond) {
			s.mu.Lock()
			j := s.jobs[ref]
			ok := j != nil && j.waiters == n
			s.mu.Unlock()
			if ok {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("there are never %d waiters", n)
			}
		}
	}

	// Both leave: the request is given up.
	ctx1, cancel1 := context.WithCancel(t.Context())
	ctx2, cancel2 := context.WithCancel(t.Context())
	first, second := get(ctx1), get(ctx2)
	<-asked
	waiters(2)
	cancel1()
	if got := <-first; !errors.Is(got.err, context.Canceled) {
		t.Errorf("first: %v, want Canceled", got.err)
	}
	waiters(1)
	select {
	case <-gone:
		t.Error("the pull was given up while one still waited")
	default:
	}
	cancel2()
	if got := <-second; !errors.Is(got.err, context.Canceled) {
		t.Errorf("second: %v, want Canceled", got.err)
	}
	select {
	case <-gone:
	case <-time.After(testenv.Scale(10 * time.Second)):
		t.Fatal("the pull goes on although nobody waits for it")
	}

	// One leaves, the other gets it.
	ctx3, cancel3 := context.WithCancel(t.Context())
	third, fourth := get(ctx3), get(t.Context())
	<-asked
	waiters(2)
	cancel3()
	<-third
	close(release)
	if got := <-fourth; got.err != nil || got.img.Root == "" {
		t.Errorf("fourth: %+v", got)
	}
}

func TestTimeout(t *testing.T) {
	layers := []v1.Layer{Layer(t, File("f", 0, "x")), Layer(t, File("g", 0, "y"))}
	r := Serve(t)
	ref := r.Push("app:1", New(t, v1.Config{}, layers...))
	r.Fault(onPath("blobs/"+digestOf(t, layers[1]), func(_ int, _ http.ResponseWriter, req *http.Request) bool {
		<-req.Context().Done()
		return true
	}))
	dir := t.TempDir()
	limit := 500 * time.Millisecond
	timeOut := func() {
		t.Helper()
		_, err := openStoreIn(t, dir, Options{Timeout: limit}).Get(t.Context(), ref, nil)
		wantKind(t, "Get", err, atoll.ErrTimeout, limit.String())
	}
	timeOut()
	fetchedFirst := func(from int) bool { return slices.Contains(r.Gets()[from:], "blobs/"+digestOf(t, layers[0])) }

	// The store does not fetch again what came in time.
	for {
		asked := len(r.Gets())
		timeOut()
		if !fetchedFirst(asked) {
			break
		}
		if limit *= 2; limit > testenv.Scale(time.Minute) {
			t.Fatal("each Get fetches the first layer again")
		}
	}
	r.Fault(nil)
	asked := len(r.Gets())
	mustGet(t, openStoreIn(t, dir, Options{}), ref)
	if fetchedFirst(asked) {
		t.Error("the first layer was fetched again")
	}
}

// TestCloseStops closes the store during a Get.
func TestCloseStops(t *testing.T) {
	noLeaks(t)
	r := Serve(t)
	ref := r.Push("app:1", simpleImage(t, "x"))
	asked := make(chan struct{})
	var once sync.Once
	r.Fault(onPath("blobs/", func(_ int, _ http.ResponseWriter, req *http.Request) bool {
		once.Do(func() { close(asked) })
		<-req.Context().Done()
		return true
	}))
	s := openStore(t, Options{})
	done := make(chan error, 1)
	go func() {
		_, err := s.Get(context.Background(), ref, nil)
		done <- err
	}()
	<-asked
	s.Close()
	wantKind(t, "Get", <-done, atoll.ErrUnavailable, "closed")
}

// fixedLayerOf is a layer of those bytes, with the diff id of other ones unless nil.
func fixedLayerOf(t *testing.T, blob, diff []byte) v1.Layer {
	t.Helper()
	if diff == nil {
		diff = blob
	}
	digest, size, err := v1.SHA256(bytes.NewReader(blob))
	if err != nil {
		t.Fatal(err)
	}
	diffID, _, err := v1.SHA256(bytes.NewReader(diff))
	if err != nil {
		t.Fatal(err)
	}
	return fixedLayer{blob, digest, diffID, size}
}

type fixedLayer struct {
	blob           []byte
	digest, diffID v1.Hash
	size           int64
}

func (l fixedLayer) Digest() (v1.Hash, error)            { return l.digest, nil }
func (l fixedLayer) DiffID() (v1.Hash, error)            { return l.diffID, nil }
func (l fixedLayer) Size() (int64, error)                { return l.size, nil }
func (l fixedLayer) MediaType() (types.MediaType, error) { return types.OCILayer, nil }

func (l fixedLayer) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.blob)), nil
}
func (l fixedLayer) Uncompressed() (io.ReadCloser, error) { return l.Compressed() }
