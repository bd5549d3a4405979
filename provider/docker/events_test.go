package docker

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// An engine that tells of events and cannot list containers is not asked for one more
// stream of events each time.
func TestOneStreamOfEvents(t *testing.T) {
	var open, most atomic.Int64
	again := make(chan struct{}, 100)
	engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/events"):
			most.Store(max(most.Load(), open.Add(1)))
			defer open.Add(-1)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			again <- struct{}{}
			<-r.Context().Done()
		case strings.HasSuffix(r.URL.Path, "/json"):
			http.Error(w, `{"message": "not now"}`, http.StatusInternalServerError)
		default:
			w.Header().Set("Api-Version", "1.45")
		}
	}))
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	engine.Listener.Close()
	engine.Listener = l
	engine.Start()
	t.Cleanup(engine.Close)
	p, err := New(Options{Dir: t.TempDir(), Plain: true, Host: "unix://" + l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, err := range p.Watch(ctx) {
		if atoll.KindOf(err) != atoll.ErrInternal {
			t.Errorf("Watch: %v", err)
		}
		break
	}
	for range 3 {
		<-again
	}
	if most.Load() > 1 {
		t.Errorf("there were %d streams of events at once", most.Load())
	}
}
