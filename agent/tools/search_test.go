package tools_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// paths returns the paths and lines that a search found.
func (r reply) paths() string {
	var all []string
	list, _ := r.out["matches"].([]any)
	for _, x := range list {
		hit := x.(map[string]any)
		text := strings.TrimPrefix(hit["path"].(string), "/work/")
		if hit["line"] != nil {
			text += fmt.Sprintf(":%v", hit["line"])
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

func TestSearchBelow(t *testing.T) {
	b := newBench(t, tools.Options{})
	b.call("sandbox_exec", m{"command": "mkdir -p src/a/b lib; touch top.go src/1.go src/a/2.go src/a/b/3.go lib/4.go src/a/x; mkfifo src/pipe"}).wantFields("exit_code", 0)
	for name, want := range map[string]string{
		"**/*.go":      "lib/4.go src/1.go src/a/2.go src/a/b/3.go top.go",
		"src/**/*.go":  "src/1.go src/a/2.go src/a/b/3.go",
		"src/**/b/**":  "src/a/b src/a/b/3.go",
		"**/a/*.go":    "src/a/2.go",
		"src/**/a/**x": "src/a/x",
		"src/*/*.go":   "src/a/2.go",
		"**/none/**":   "",
		"p*":           "src/pipe",
	} {
		if r := b.call("sandbox_fs_search", m{"name": name}); r.err != nil || r.paths() != want {
			t.Errorf("%s finds %q (%v), want %q", name, r.paths(), r.err, want)
		}
	}
	b.call("sandbox_fs_search", m{"name": "src/[/x"}).wantError(atoll.ErrInvalid, "pattern")
}

// Skipped files cost nothing, and a pattern has a time limit.
func TestSearchThatIsSlow(t *testing.T) {
	b := newBench(t, tools.Options{Agent: agentWithLimits(func(l *frontmatter.Limits) {
		l.Timeout = max(5*time.Second, testenv.Scale(3*time.Second)).Round(time.Second)
	})})
	b.call("sandbox_exec", m{"command": "truncate -s 1T huge; mkdir d; echo needle > d/f; yes ab | tr -d '\\n' | head -c 8000000 > line"}).wantFields("exit_code", 0)
	for _, in := range []m{{"name": "f"}, {"content": "needle"}} {
		if r := b.call("sandbox_fs_search", in).wantFields("truncated", nil); !strings.HasPrefix(r.paths(), "d/f") {
			t.Errorf("%v finds %q", in, r.paths())
		}
	}
	began := time.Now()
	r := b.call("sandbox_fs_search", m{"content": "(a?b?){500}(b?a?){500}c", "path": "line"}).wantFields("truncated", true, "matches", "[]")
	if took := time.Since(began); took > testenv.Scale(10*time.Second) || !strings.Contains(fmt.Sprint(r.out["note"]), "was over") {
		t.Errorf("after %s: %v", took, r.out)
	}
	b.call("sandbox_fs_search", m{"content": strings.Repeat("(a?){1000}", 100)}).wantError(atoll.ErrInvalid, "repeats too much")
	b.call("sandbox_fs_search", m{"content": strings.Repeat("a", 5000)}).wantError(atoll.ErrInvalid, "5000 bytes")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(500*time.Millisecond, cancel)
	began = time.Now()
	_, err := b.Call(ctx, b.caller, "sandbox_fs_search", []byte(`{"content": "(a?b?){500}(b?a?){500}c", "path": "line"}`), nil)
	if took := time.Since(began); took > testenv.Scale(10*time.Second) || !errors.Is(err, context.Canceled) {
		t.Errorf("a search that is broken off: %v after %s", err, took)
	}
}

// After an unreadable file a search continues.
func TestSearchThatBreaks(t *testing.T) {
	p := &brokenProvider{ProviderLayer: atoll.ProviderLayer{Provider: newBench(t, tools.Options{}).provider}}
	p.list = func() error { return atoll.E("list", ".", atoll.ErrDenied, nil) }
	p.tar = func() error { return atoll.Errorf("read", "z-last", atoll.ErrConflict, "the file shrank") }
	b := newBenchOn(t, p, tools.Options{})
	b.call("sandbox_exec", m{"command": "echo needle | tee a-first > z-last"}).wantFields("exit_code", 0)
	for _, in := range []m{{"content": "needle"}, {"name": "*-*"}} {
		r := b.call("sandbox_fs_search", in).wantFields("truncated", true)
		if note := fmt.Sprint(r.out["note"]); !strings.HasPrefix(r.paths(), "a-first") || !strings.Contains(note, "ended early") || !strings.Contains(note, "the file shrank") {
			t.Errorf("%v: %v, %v", in, r.out, r.err)
		}
	}
	b.call("sandbox_fs_search", m{"content": "x", "path": "none"}).wantError(atoll.ErrNotExist)
}
