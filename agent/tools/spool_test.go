package tools_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/tools"
)

// A spoolProvider has sandboxes with files in /tmp, in memory. Others have them in their own file system.
type spoolProvider struct {
	atoll.ProviderLayer
	mu    sync.Mutex
	names []string
	files map[string][]byte
}

func (p *spoolProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	sb, err := p.Provider.Create(ctx, spec)
	return spoolSandbox{atoll.SandboxLayer{Sandbox: sb}, p}, err
}

func (p *spoolProvider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := p.Provider.Get(ctx, id)
	return spoolSandbox{atoll.SandboxLayer{Sandbox: sb}, p}, err
}

type spoolSandbox struct {
	atoll.SandboxLayer
	p *spoolProvider
}

func (s spoolSandbox) Files() atoll.FS { return spoolFS{atoll.Files(s.Sandbox), s.p} }

type spoolFS struct {
	atoll.FS
	p *spoolProvider
}

func (f spoolFS) Sub(dir string) atoll.FS {
	if strings.HasPrefix(dir, "/tmp/") {
		return f
	}
	return atoll.SubFiles(f.FS, dir)
}

func (f spoolFS) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	data, ok := f.p.files[name]
	if !ok {
		return f.FS.Read(ctx, name, offset)
	}
	return io.NopCloser(bytes.NewReader(data[offset:])), atoll.FileInfo{Path: name, Size: int64(len(data)), Type: atoll.TypeFile}, nil
}

func (f spoolFS) Write(ctx context.Context, name string, r io.Reader, opts atoll.WriteOptions) (atoll.FileInfo, error) {
	if !strings.HasPrefix(name, "/tmp/") {
		return f.FS.Write(ctx, name, r, opts)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return atoll.FileInfo{}, err
	}
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	f.p.files[name] = data
	f.p.names = append(f.p.names, name)
	return atoll.FileInfo{Path: name, Size: int64(len(data))}, nil
}

func (f spoolFS) Remove(ctx context.Context, name string, recursive bool) error {
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	delete(f.p.files, name)
	return nil
}

// A file in the sandbox has all of an output that is too long.
func TestFilesOfLongOutput(t *testing.T) {
	p := &spoolProvider{ProviderLayer: atoll.ProviderLayer{Provider: newBench(t, tools.Options{}).provider}, files: map[string][]byte{}}
	b := newBenchOn(t, p, tools.Options{OutputLimit: 1000})
	b.call("sandbox_exec", m{"command": "seq 100"}).wantFields("truncated", nil, "note", nil)
	if len(p.names) > 0 {
		t.Fatalf("a short output has the files %q", p.names)
	}
	var all strings.Builder
	for i := range 100_000 {
		fmt.Fprintln(&all, i+1)
	}
	r := b.call("sandbox_exec", m{"command": "seq 100000; echo short >&2"}).wantFields("truncated", true, "stderr", "short\n", "process_id", nil,
		"note", "Read parts of such a file with sandbox_fs_read (line, lines), or search it with grep.")
	if len(p.names) != 1 || string(p.files[p.names[0]]) != all.String() || path.Dir(p.names[0]) != "/tmp/atoll-output" {
		t.Fatalf("the files are %q", p.names)
	}
	if stdout := fmt.Sprint(r.out["stdout"]); !strings.Contains(stdout, " bytes left out; all of it is in "+p.names[0]+" ...]\n") || !strings.HasSuffix(stdout, "\n100000\n") {
		t.Errorf("stdout is %q", stdout)
	}
	b.call("sandbox_fs_read", m{"path": p.names[0], "offset": 588880}).wantFields("content", "8\n99999\n100000\n", "truncated", nil)
	b.call("sandbox_fs_write", m{"path": p.names[0], "content": "x"}).wantError(atoll.ErrDenied, "outside of /work")
	// Neither stream is too long, but both are.
	b.call("sandbox_exec", m{"command": "seq 250; seq 250 >&2"}).wantFields("truncated", true)
	if len(p.names) != 3 || !slices.Equal(p.files[p.names[1]], p.files[p.names[2]]) || !strings.HasSuffix(string(p.files[p.names[1]]), "\n250\n") {
		t.Errorf("the files are %q", p.names)
	}
	for range 30 {
		b.call("sandbox_exec", m{"command": "seq 1000"}).wantFields("truncated", true)
	}
	if len(p.files) != 20 {
		t.Errorf("there are %d files, want 20", len(p.files))
	}
	b.call("sandbox_exec", m{"command": "yes | head -c 80000000"}).wantFields("truncated", true)
	if len(p.files) != 20 {
		t.Errorf("an output that is longer than a file may be has a file")
	}
}
