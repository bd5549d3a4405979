package tools_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/agent/tools"
)

// agentWithLimits returns an agent's file with limits of its own.
func agentWithLimits(set func(l *frontmatter.Limits)) *frontmatter.Sandbox {
	l := frontmatter.DefaultLimits()
	set(&l)
	return &frontmatter.Sandbox{Mode: frontmatter.ModeCode, Session: frontmatter.SessionWorkflow, Limits: l}
}

// An unset limit is the default.
func TestLimitsOfZero(t *testing.T) {
	b := newBench(t, tools.Options{Agent: &frontmatter.Sandbox{Mode: frontmatter.ModeCode, Limits: frontmatter.Limits{MaxFiles: 2}}})
	if got, want := b.Limits(), (frontmatter.Limits{Timeout: 300 * time.Second, MaxFileSize: 10 << 20, MaxFiles: 2}); got != want {
		t.Errorf("the limits are %+v, want %+v", got, want)
	}
}

// Written files count until they are deleted, whatever else happens.
func TestFilesAreCounted(t *testing.T) {
	b := newBench(t, tools.Options{Agent: agentWithLimits(func(l *frontmatter.Limits) { l.MaxFiles = 2 })})
	b.call("sandbox_fs_write", m{"path": "a/1", "content": ""}).wantFields()
	b.call("sandbox_fs_write", m{"path": "a", "content": ""}).wantError(atoll.ErrInvalid)
	b.call("sandbox_fs_write", m{"path": ".", "content": ""}).wantError(atoll.ErrInvalid)
	b.call("sandbox_fs_write", m{"path": "a/2", "content": ""}).wantFields()
	b.call("sandbox_fs_write", m{"path": "a/3", "content": ""}).wantError(atoll.ErrExhausted)
	b.call("sandbox_exec", m{"command": "rm a/1; echo x > b"}).wantFields("exit_code", 0)
	b.call("sandbox_fs_edit", m{"path": "b", "old_text": "x", "new_text": "y"}).wantError(atoll.ErrExhausted, "sandbox_fs_delete")
	b.call("sandbox_fs_delete", m{"path": "a/1"}).wantError(atoll.ErrNotExist)
	b.call("sandbox_fs_edit", m{"path": "b", "old_text": "x", "new_text": "y"}).wantFields("replacements", 1)
}

// The result of an edit is measured before it is written.
func TestEditThatIsTooLarge(t *testing.T) {
	b := newBench(t, tools.Options{Agent: agentWithLimits(func(l *frontmatter.Limits) { l.MaxFileSize = 1 << 20 })})
	b.call("sandbox_fs_write", m{"path": "f", "content": strings.Repeat("a", 1<<20)}).wantFields()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b.call("sandbox_fs_edit", m{"path": "f", "old_text": "a", "new_text": strings.Repeat("b", 200), "replace_all": true}).wantError(atoll.ErrInvalid, "209715200 bytes", "1048576")
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 100<<20 {
		t.Errorf("it takes %s to refuse that", atoll.Bytes(used))
	}
}

// No concurrent edit is lost.
func TestEditsAtOnce(t *testing.T) {
	b := newBench(t, tools.Options{})
	var lines []string
	for i := range 30 {
		lines = append(lines, fmt.Sprintf("old %02d\n", i))
	}
	b.call("sandbox_fs_write", m{"path": "f", "content": strings.Join(lines, "")}).wantFields()
	var all sync.WaitGroup
	for i := range lines {
		all.Go(func() {
			b.call("sandbox_fs_edit", m{"path": "f", "old_text": fmt.Sprintf("old %02d", i), "new_text": fmt.Sprintf("new %02d", i)}).wantFields("replacements", 1)
		})
	}
	all.Wait()
	b.call("sandbox_fs_read", m{"path": "f"}).wantFields("content", strings.ReplaceAll(strings.Join(lines, ""), "old", "new"))
}

// A file read in pieces is complete, whatever its content.
func TestReadInPieces(t *testing.T) {
	b := newBench(t, tools.Options{})
	for name, data := range map[string][]byte{
		"text":   []byte("aäб€😀z"),
		"binary": {0xff, 0xc3, 0xe2, 0x82, 0, 0xf0, 0x9f, 0xc3, 0xa4, 'x', 0xf0},
	} {
		b.call("sandbox_fs_write", m{"path": name, "content": base64.StdEncoding.EncodeToString(data), "encoding": "base64"}).wantFields("size_bytes", len(data))
		for size := 1; size <= len(data); size++ {
			var got []byte
			offset := 0
			for range 2 * len(data) {
				r := b.call("sandbox_fs_read", m{"path": name, "offset": offset, "max_bytes": size}).wantFields("size_bytes", len(data))
				if r.err != nil {
					break
				}
				piece := []byte(r.out["content"].(string))
				if r.out["encoding"] == "base64" {
					var err error
					if piece, err = base64.StdEncoding.DecodeString(string(piece)); err != nil {
						t.Fatal(err)
					}
				}
				got = append(got, piece...)
				next, more := r.out["next_offset"].(float64)
				if !more {
					break
				}
				offset = int(next)
			}
			if !bytes.Equal(got, data) {
				t.Errorf("%s in pieces of %d bytes: %q, want %q", name, size, got, data)
			}
		}
		b.call("sandbox_fs_read", m{"path": name, "offset": 1000}).wantFields("content", "", "size_bytes", len(data), "truncated", nil)
	}
}

func TestModes(t *testing.T) {
	b := newBench(t, tools.Options{})
	for mode, want := range map[string]string{"0o755": "755", "755": "755", "0600": "600"} {
		b.call("sandbox_fs_write", m{"path": "f" + mode, "content": "", "mode": mode}).wantFields()
		b.call("sandbox_exec", m{"command": "stat -c %a f" + mode}).wantFields("stdout", want+"\n")
	}
	for _, mode := range []string{"755x", "7 5 5", "0", "0000", "01777", "-1", "+x", "0x1ff", "8", ""} {
		if mode != "" {
			b.call("sandbox_fs_write", m{"path": "f", "content": "", "mode": mode}).wantError(atoll.ErrInvalid, "octal")
		}
	}
}

// A work directory gives no access to blocked paths.
func TestBlockedInTheWorkDirectory(t *testing.T) {
	opts := tools.Options{Blocked: []string{"/work/secret"}}
	_, err := tools.New(nil, opts)
	if atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), "blocked path /work/secret") {
		t.Errorf("a work directory with a blocked path: %v", err)
	}
	if _, err = tools.New(nil, tools.Options{Blocked: []string{"secret"}}); atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("a relative path: %v", err)
	}
	b := newBench(t, tools.Options{})
	b.call("sandbox_exec", m{"command": "mkdir secret; echo hidden > secret/f; ln -s secret/f link"}).wantFields("exit_code", 0) // in a sandbox of another program
	opts.Sandbox.Workdir = "/elsewhere"
	b = newBenchOn(t, b.provider, opts)
	for name, in := range map[string]m{
		"sandbox_fs_read": {"path": "link"}, "sandbox_fs_list": {"recursive": true}, "sandbox_fs_search": {"content": "hidden"},
		"sandbox_fs_edit": {"path": "link", "old_text": "hidden", "new_text": "x"}, "sandbox_fs_write": {"path": "link", "content": "x"},
		"sandbox_fs_delete": {"path": "secret", "recursive": true},
	} {
		b.call(name, in).wantError(atoll.ErrDenied, "/work/secret", "blocked")
	}
	b.call("sandbox_exec", m{"command": "cat link"}).wantFields("stdout", "hidden\n")
}

// File errors contain advice.
func TestErrorsOfFiles(t *testing.T) {
	p := &brokenProvider{ProviderLayer: atoll.ProviderLayer{Provider: newBench(t, tools.Options{}).provider}}
	p.list = func() error { return atoll.Errorf("list", ".", atoll.ErrExhausted, "too many: ask for less") }
	b := newBenchOn(t, p, tools.Options{})
	b.call("sandbox_exec", m{"command": "mkdir d; mkfifo pipe; echo x > f; ln -s loop loop"}).wantFields("exit_code", 0)
	for _, tt := range []struct {
		tool string
		in   m
		want string
	}{
		{"sandbox_fs_read", m{"path": "d"}, "sandbox_fs_read: /work/d: is a directory: use sandbox_fs_list to see existing files"},
		{"sandbox_fs_read", m{"path": "pipe"}, "sandbox_fs_read: /work/pipe: not a regular file: use sandbox_fs_list to see existing files"},
		{"sandbox_fs_read", m{"path": "loop"}, "sandbox_fs_read: /work/loop: too many levels of symbolic links: use sandbox_fs_list to see existing files"},
		{"sandbox_fs_write", m{"path": "d", "content": ""}, "sandbox_fs_write: /work/d: is a directory: use sandbox_fs_list to see existing files"},
		{"sandbox_fs_write", m{"path": "pipe", "content": ""}, "sandbox_fs_write: /work/pipe: not a regular file: use sandbox_fs_list to see existing files"},
		{"sandbox_fs_write", m{"path": "f/x", "content": ""}, "sandbox_fs_write: /work/f/x: not a directory: use sandbox_fs_list to see existing files"},
		{"sandbox_fs_edit", m{"path": "pipe", "old_text": "x", "new_text": ""}, "sandbox_fs_edit: /work/pipe: not a regular file: use sandbox_fs_list to see existing files"},
		{"sandbox_fs_list", m{}, "sandbox_fs_list: /work: too many: ask for less"},
	} {
		if r := b.call(tt.tool, tt.in); r.err == nil || r.err.Error() != tt.want {
			t.Errorf("%s %v: %v, want %s", tt.tool, tt.in, r.err, tt.want)
		}
	}
}

// A brokenProvider has sandboxes with partly unreadable files.
type brokenProvider struct {
	atoll.ProviderLayer
	list, tar func() error
}

func (p *brokenProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	sb, err := p.Provider.Create(ctx, spec)
	return brokenSandbox{atoll.SandboxLayer{Sandbox: sb}, p}, err
}

func (p *brokenProvider) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := p.Provider.Get(ctx, id)
	return brokenSandbox{atoll.SandboxLayer{Sandbox: sb}, p}, err
}

type brokenSandbox struct {
	atoll.SandboxLayer
	p *brokenProvider
}

func (s brokenSandbox) Files() atoll.FS { return brokenFS{atoll.Files(s.Sandbox), s.p} }

type brokenFS struct {
	atoll.FS
	p *brokenProvider
}

func (f brokenFS) Sub(dir string) atoll.FS { return brokenFS{atoll.SubFiles(f.FS, dir), f.p} }

func (f brokenFS) List(ctx context.Context, name string, recursive bool) ([]atoll.FileInfo, error) {
	if err := f.p.list(); err != nil {
		return nil, err
	}
	return f.FS.List(ctx, name, recursive)
}

func (f brokenFS) WriteTar(ctx context.Context, name string, w io.Writer) error {
	return f.FS.WriteTar(ctx, name, &brokenWriter{w, f.p.tar})
}

// A brokenWriter fails at the second file.
type brokenWriter struct {
	io.Writer
	fail func() error
}

func (w *brokenWriter) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("z-last")) {
		return 0, w.fail()
	}
	return w.Writer.Write(b)
}
