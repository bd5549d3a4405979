package testimage

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// A Registry serves images on the loopback interface, over plain HTTP, until the test ends.
type Registry struct {
	// Host is the "host:port" of the registry.
	Host string

	t         testing.TB
	transport *http.Transport // for Push

	mu    sync.Mutex
	fault func(http.Handler) http.Handler // nil for none
	gets  []string                        // "manifests/TAG", "blobs/DIGEST"
}

// Serve starts a registry.
func Serve(t testing.TB) *Registry {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ServeOn(t, l, nil)
}

// ServeOn is Serve on a listener. Push uses dial to reach it; nil means the default.
func ServeOn(t testing.TB, l net.Listener, dial func(ctx context.Context, network, addr string) (net.Conn, error)) *Registry {
	t.Helper()
	r := &Registry{t: t}
	good := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h := http.Handler(good)
		r.mu.Lock()
		if what := requestedObject(req); what != "" {
			r.gets = append(r.gets, what)
		}
		if r.fault != nil {
			h = r.fault(h)
		}
		r.mu.Unlock()
		h.ServeHTTP(w, req)
	}))
	_ = server.Listener.Close() // replace the default listener
	server.Listener = l
	server.Config.SetKeepAlivesEnabled(false) // leave no connections of clients in this process
	server.Start()
	r.transport = server.Client().Transport.(*http.Transport).Clone()
	r.transport.DialContext = dial
	t.Cleanup(func() {
		r.transport.CloseIdleConnections()
		server.Close()
	})
	r.Host = strings.TrimPrefix(server.URL, "http://")
	return r
}

// requestedObject returns the manifest or blob that a request gets, or "".
func requestedObject(req *http.Request) string {
	if req.Method != http.MethodGet {
		return ""
	}
	for _, kind := range []string{"manifests/", "blobs/"} {
		if i := strings.LastIndex(req.URL.Path, "/"+kind); i >= 0 {
			return req.URL.Path[i+1:]
		}
	}
	return ""
}

// Push stores img under a name such as "team/app:1" and returns the reference to pull it by.
func (r *Registry) Push(repoTag string, img v1.Image) string {
	r.t.Helper()
	ref, err := name.ParseReference(r.Host + "/" + repoTag)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := remote.Write(ref, img, remote.WithTransport(r.transport)); err != nil {
		r.t.Fatal(err)
	}
	r.forgetGets()
	return ref.Name()
}

// PushIndex is Push for an index of images.
func (r *Registry) PushIndex(repoTag string, index v1.ImageIndex) string {
	r.t.Helper()
	ref, err := name.ParseReference(r.Host + "/" + repoTag)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, index, remote.WithTransport(r.transport)); err != nil {
		r.t.Fatal(err)
	}
	r.forgetGets()
	return ref.Name()
}

func (r *Registry) forgetGets() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gets = nil
}

// Fault wraps the registry with a handler, which may forward requests to it. nil removes the wrapper.
func (r *Registry) Fault(wrap func(registry http.Handler) http.Handler) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault = wrap
}

// Unplug makes the registry answer all requests with 404 for the rest of a test.
func (r *Registry) Unplug(t *testing.T) {
	r.Fault(func(http.Handler) http.Handler { return http.NotFoundHandler() })
	t.Cleanup(func() { r.Fault(nil) })
}

// PushTiny returns a function that pushes a Tiny image under a name, and returns the reference to pull it by.
func (r *Registry) PushTiny(repoTag string) func(t *testing.T, text string) string {
	return func(t *testing.T, text string) string {
		t.Helper()
		return r.Push(repoTag, Tiny(t, text))
	}
}

// Gets returns the objects requested since the last Push: "manifests/TAG", "blobs/DIGEST".
func (r *Registry) Gets() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.gets...)
}
