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

// hits are the paths of what a search finds, and lines.
func (r reply) hits() string {
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
	b.call("sandbox_exec", m{"command": "mkdir -p src/a/b lib; touch top.go src/1.go src/a/2.go src/a/b/3.go lib/4.go src/a/x; mkfifo src/pipe"}).is("exit_code", 0)
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
		if r := b.call("sandbox_fs_search", m{"name": name}); r.err != nil || r.hits() != want {
			t.Errorf("%s finds %q (%v), want %q", name, r.hits(), r.err, want)
		}
	}
	b.call("sandbox_fs_search", m{"name": "src/[/x"}).fails(atoll.ErrInvalid, "pattern")
}

// What is not looked at costs nothing, and a pattern no more than its time.
func TestSearchThatIsSlow(t *testing.T) {
	b := newBench(t, tools.Options{Agent: limited(func(l *frontmatter.Limits) { l.Timeout = testenv.Scale(3 * time.Second).Round(time.Second) })})
	b.call("sandbox_exec", m{"command": "truncate -s 1T huge; mkdir d; echo needle > d/f; yes ab | tr -d '\\n' | head -c 8000000 > line"}).is("exit_code", 0)
	for _, in := range []m{{"name": "f"}, {"content": "needle"}} {
		if r := b.call("sandbox_fs_search", in).is("truncated", nil); !strings.HasPrefix(r.hits(), "d/f") {
			t.Errorf("%v finds %q", in, r.hits())
		}
	}
	began := time.Now()
	r := b.call("sandbox_fs_search", m{"content": "(a?b?){500}(b?a?){500}c", "path": "line"}).is("truncated", true, "matches", "[]")
	if took := time.Since(began); took > testenv.Scale(10*time.Second) || !strings.Contains(fmt.Sprint(r.out["note"]), "was over") {
		t.Errorf("after %s: %v", took, r.out)
	}
	b.call("sandbox_fs_search", m{"content": strings.Repeat("(a?){1000}", 100)}).fails(atoll.ErrInvalid, "repeats too much")
	b.call("sandbox_fs_search", m{"content": strings.Repeat("a", 5000)}).fails(atoll.ErrInvalid, "5000 bytes")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(500*time.Millisecond, cancel)
	began = time.Now()
	_, err := b.Call(ctx, b.caller, "sandbox_fs_search", []byte(`{"content": "(a?b?){500}(b?a?){500}c", "path": "line"}`), nil)
	if took := time.Since(began); took > testenv.Scale(10*time.Second) || !errors.Is(err, context.Canceled) {
		t.Errorf("a search that is broken off: %v after %s", err, took)
	}
}

// A file that may not be read costs a search no more than what comes after it.
func TestSearchThatBreaks(t *testing.T) {
	p := &broken{ProviderLayer: atoll.ProviderLayer{Provider: newBench(t, tools.Options{}).provider}}
	p.list = func() error { return atoll.E("list", ".", atoll.ErrDenied, nil) }
	p.tar = func() error { return atoll.Errorf("read", "z-last", atoll.ErrConflict, "the file shrank") }
	b := newBenchOn(t, p, tools.Options{})
	b.call("sandbox_exec", m{"command": "echo needle | tee a-first > z-last"}).is("exit_code", 0)
	for _, in := range []m{{"content": "needle"}, {"name": "*-*"}} {
		r := b.call("sandbox_fs_search", in).is("truncated", true)
		if note := fmt.Sprint(r.out["note"]); !strings.HasPrefix(r.hits(), "a-first") || !strings.Contains(note, "ended early") || !strings.Contains(note, "the file shrank") {
			t.Errorf("%v: %v, %v", in, r.out, r.err)
		}
	}
	b.call("sandbox_fs_search", m{"content": "x", "path": "none"}).fails(atoll.ErrNotExist)
}
