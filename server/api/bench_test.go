package api_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/api/client"
)

// overPipe is overSocket with a Pipe.
func overPipe(t testing.TB, p atoll.Provider) *client.Client {
	t.Helper()
	pipe := api.NewPipe()
	h, err := api.NewHandler(p, api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- api.Serve(ctx, h, pipe) }()
	c, err := client.New(t.Context(), client.Options{Dial: pipe.Dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return c
}

var transports = []struct {
	name string
	over func(tb testing.TB, p atoll.Provider) atoll.Provider
}{
	{"direct", func(_ testing.TB, p atoll.Provider) atoll.Provider { return p }},
	{"pipe", func(tb testing.TB, p atoll.Provider) atoll.Provider { return overPipe(tb, p) }},
	{"socket", func(tb testing.TB, p atoll.Provider) atoll.Provider { return overSocket(tb, p) }},
	{"two-sockets", func(tb testing.TB, p atoll.Provider) atoll.Provider { return overSocket(tb, overSocket(tb, p)) }},
}

func benchSandbox(b *testing.B, p atoll.Provider) atoll.Sandbox {
	b.Helper()
	sb, err := p.Get(b.Context(), api.FakeID)
	if err != nil {
		b.Fatal(err)
	}
	return sb
}

// BenchmarkExec measures the cost of a hop with a command that does nothing.
func BenchmarkExec(b *testing.B) {
	for _, tr := range transports {
		for _, attached := range []bool{true, false} {
			b.Run(tr.name+map[bool]string{true: "/output", false: "/detached"}[attached], func(b *testing.B) {
				sb := benchSandbox(b, tr.over(b, api.NewFake(nil)))
				var took []time.Duration
				b.ReportAllocs()
				for b.Loop() {
					start := time.Now()
					var out, errOut bytes.Buffer
					cmd := &atoll.Command{Args: []string{"echo", "hello"}}
					if attached {
						cmd.Stdout, cmd.Stderr = &out, &errOut
					}
					if err := atoll.Run(b.Context(), sb, cmd); err != nil {
						b.Fatal(err)
					}
					if attached && out.String() != "hello\n" {
						b.Fatalf("got %q", out.String())
					}
					took = append(took, time.Since(start))
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs/median")
			})
		}
	}
}

// BenchmarkFile64MiB writes and reads a file. plain measures the disk without the API.
func BenchmarkFile64MiB(b *testing.B) {
	const size = 64 << 20
	dir := b.TempDir()
	data := make([]byte, size)
	rand.Read(data)
	outside := filepath.Join(dir, "outside")
	if err := os.WriteFile(outside, data, 0o600); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "inside"), data, 0o600); err != nil {
		b.Fatal(err)
	}
	b.Run("plain", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			src, err := os.Open(outside)
			if err != nil {
				b.Fatal(err)
			}
			dst, err := os.Create(filepath.Join(dir, "copy"))
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, make([]byte, 256<<10)); err != nil {
				b.Fatal(err)
			}
			src.Close()
			dst.Close()
		}
	})
	fs, err := dirfs.New("/work", dir, dirfs.Options{UID: -1, GID: -1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { fs.Close() })
	for _, tr := range transports {
		b.Run(tr.name+"/write", func(b *testing.B) {
			files := atoll.Files(benchSandbox(b, tr.over(b, api.NewFake(fs))))
			b.SetBytes(size)
			for b.Loop() {
				src, err := os.Open(outside)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := files.Write(b.Context(), "/work/written", src, atoll.WriteOptions{}); err != nil {
					b.Fatal(err)
				}
				src.Close()
			}
		})
		b.Run(tr.name+"/read", func(b *testing.B) {
			files := atoll.Files(benchSandbox(b, tr.over(b, api.NewFake(fs))))
			b.SetBytes(size)
			for b.Loop() {
				src, _, err := files.Read(b.Context(), "/work/inside", 0)
				if err != nil {
					b.Fatal(err)
				}
				dst, err := os.Create(filepath.Join(dir, "copy"))
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(dst, src); err != nil {
					b.Fatal(err)
				}
				src.Close()
				dst.Close()
			}
		})
	}
}

func BenchmarkNewHandler(b *testing.B) {
	p := api.NewFake(nil)
	for b.Loop() {
		h, err := api.NewHandler(p, api.Options{})
		if err != nil {
			b.Fatal(err)
		}
		h.Close()
	}
}
