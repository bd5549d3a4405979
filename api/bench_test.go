package api

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// serve serves p on a unix socket and returns a client of it.
func serve(tb testing.TB, p atoll.Provider, opts Options) *Client {
	tb.Helper()
	h, err := NewHandler(p, opts)
	if err != nil {
		tb.Fatal(err)
	}
	path := filepath.Join(tb.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		tb.Fatal(err)
	}
	server := &http.Server{Handler: h}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	c, err := NewClient(tb.Context(), ClientOptions{URL: "unix://" + path})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		c.Close()
		server.Close()
		h.Close()
		<-served
	})
	return c
}

func BenchmarkExec(b *testing.B) {
	hops := func(b *testing.B, n int) atoll.Sandbox {
		var p atoll.Provider = newFake()
		for range n {
			p = serve(b, p, Options{})
		}
		sb, err := p.Get(b.Context(), fakeID)
		if err != nil {
			b.Fatal(err)
		}
		return sb
	}
	for _, n := range []int{0, 1, 2} {
		for _, streams := range []bool{true, false} {
			name := []string{"direct", "one-hop", "two-hops"}[n] + map[bool]string{true: "/streams", false: "/none"}[streams]
			b.Run(name, func(b *testing.B) {
				sb := hops(b, n)
				ctx := context.Background()
				var took []time.Duration
				b.ReportAllocs()
				for b.Loop() {
					start := time.Now()
					cmd := &atoll.Command{Args: []string{"echo", "hello"}}
					if streams {
						cmd.Stdout, cmd.Stderr = io.Discard, &discard{}
					}
					if err := atoll.Run(ctx, sb, cmd); err != nil {
						b.Fatal(err)
					}
					took = append(took, time.Since(start))
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2])/1e6, "ms/median")
			})
		}
	}
}

type discard struct{ n int }

func (d *discard) Write(p []byte) (int, error) { d.n += len(p); return len(p), nil }
