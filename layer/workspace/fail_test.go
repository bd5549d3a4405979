package workspace_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/layer/workspace"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// gitIn runs git with this stdin.
func (r *repo) gitIn(stdin string, args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Stdin = r.dir, strings.NewReader(stdin)
	out, err := cmd.Output()
	if err != nil {
		r.t.Fatalf("git %q: %v", args, err)
	}
	return strings.TrimSpace(string(out))
}

func TestOverHTTP(t *testing.T) {
	r := newRepo(t)
	for i := range 50 {
		r.write(fmt.Sprint("f", i), strings.Repeat(fmt.Sprint(i), 1000))
	}
	commit := r.commit()
	for _, plain := range []bool{false, true} {
		p := newOnMock(t, workspace.Options{})
		var said []string
		spec := workspace.Spec{Name: "w", Source: r.serve(plain, nil)}
		w, err := workspace.Add(t.Context(), p, &spec, func(p atoll.Progress) { said = append(said, p.Item) })
		if err != nil || w.Commit != commit {
			t.Fatalf("plain %v: AddWorkspace = %+v, %v, want commit %s", plain, w, err, commit)
		}
		if len(said) == 0 {
			t.Errorf("plain %v: no progress was reported", plain)
		}
		checkFile(t, createSandbox(t, p, useWorkspace("w")), "f7", strings.Repeat("7", 1000))
	}
}

// Concurrent users of a workspace share one clone, over several providers too.
func TestCloneOnce(t *testing.T) {
	r := newRepo(t)
	r.write("f", "x")
	r.commit()
	var clones atomic.Int32
	url := r.serve(false, func() { clones.Add(1) })
	opts := workspace.Options{Dir: filepath.Join(t.TempDir(), "w")}
	providers := []atoll.Provider{newOnMock(t, opts), newOnMock(t, opts), newOnMock(t, opts)}
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			sb, err := providers[i%3].Create(context.Background(), &atoll.Spec{Workspace: atoll.WorkspaceRef{Source: url}})
			if err != nil {
				t.Errorf("Create: %v", err)
				return
			}
			if got, err := atoll.ReadFile(context.Background(), sb, "f"); err != nil || string(got) != "x" {
				t.Errorf("the file holds %q, %v", got, err)
			}
		})
	}
	wg.Wait()
	if n := clones.Load(); n != 1 {
		t.Errorf("%d clones, want 1", n)
	}
}

// If the repository of a sandbox cannot be cloned, neither the sandbox nor a workspace remains.
func TestSourceThatCannotBeCloned(t *testing.T) {
	opts := workspace.Options{Dir: filepath.Join(t.TempDir(), "w")}
	providers := []atoll.Provider{newOnMock(t, opts), newOnMock(t, opts)}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			spec := &atoll.Spec{Workspace: atoll.WorkspaceRef{Source: "http://127.0.0.1:1/x.git"}}
			_, err := providers[i%2].Create(context.Background(), spec)
			wantKind(t, "Create", err, atoll.ErrUnavailable)
		})
	}
	wg.Wait()
	for _, p := range providers {
		if all, err := workspace.List(t.Context(), p, ""); err != nil || len(all) > 0 {
			t.Errorf("%+v remain (%v)", all, err)
		}
		if all, err := p.List(t.Context(), atoll.Filter{}); err != nil || len(all) > 0 {
			t.Errorf("%+v remain (%v)", all, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(opts.Dir, "*", "*")); err != nil || len(left) > 0 {
		t.Errorf("%q remain on disk (%v)", left, err)
	}
}

func TestErrors(t *testing.T) {
	r := newRepo(t)
	r.write("f", "x")
	r.commit()
	empty := newRepo(t)
	closed := r.listen(nil)
	auth := r.listen(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	})
	elsewhere := r.serve(false, nil)
	redirect := r.listen(func(w http.ResponseWriter, req *http.Request) {
		http.Redirect(w, req, elsewhere+strings.TrimPrefix(req.URL.Path, "/r")+"?"+req.URL.RawQuery, http.StatusFound)
	})
	_ = closed
	for name, tt := range map[string]struct {
		source, revision string
		kind             atoll.Kind
		says             string
	}{
		"no such repository":         {"file://" + r.dir + "-none", "", atoll.ErrNotExist, "does not"},
		"no such repository by HTTP": {elsewhere + "-none", "", atoll.ErrNotExist, "not found"},
		"no such branch":             {"file://" + r.dir, "nonsuch", atoll.ErrNotExist, "no branch or tag"},
		"no such commit":             {"file://" + r.dir, strings.Repeat("ab", 20), atoll.ErrNotExist, "abab"},
		"no commit at all":           {"file://" + empty.dir, "", atoll.ErrInvalid, "no commit"},
		"credentials needed":         {auth + "/x.git", "", atoll.ErrDenied, "git"},
		"unreachable":                {"http://127.0.0.1:1/x.git", "", atoll.ErrUnavailable, "git"},
		"a redirection":              {redirect + "/r", "", atoll.ErrUnavailable, "302"},
		"a password":                 {"https://me:hunter2@example.com/x.git", "", atoll.ErrInvalid, "credential helper"},
		"a token":                    {"https://hunter2@example.com/x.git", "", atoll.ErrInvalid, "credential helper"},
		"a query":                    {"https://example.com/x.git?token=hunter2", "", atoll.ErrInvalid, "credential helper"},
		"a program":                  {"ext::sh -c touch% /tmp/x", "", atoll.ErrInvalid, "source"},
		"an option":                  {"--upload-pack=touch /tmp/x", "", atoll.ErrInvalid, "source"},
		"a host that is an option":   {"ssh://-oProxyCommand=x/y", "", atoll.ErrInvalid, "host"},
		"a relative path":            {"some/where", "", atoll.ErrInvalid, "source"},
		"a revision that is none":    {r.dir, "--output=x", atoll.ErrInvalid, "revision"},
		"a range":                    {r.dir, "a..b", atoll.ErrInvalid, "revision"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newOnMock(t, workspace.Options{})
			spec := workspace.Spec{Name: "w", Source: tt.source, Revision: tt.revision}
			_, err := workspace.Add(t.Context(), p, &spec, nil)
			wantKind(t, "AddWorkspace", err, tt.kind)
			if err == nil {
				return
			}
			if !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error is %q, want it to have %q", err, tt.says)
			}
			all, listErr := workspace.List(t.Context(), p, "")
			if tt.kind == atoll.ErrInvalid && len(all) == 0 {
				return
			}
			if listErr != nil || len(all) != 1 || all[0].State != workspace.StateError || !strings.Contains(err.Error(), all[0].Error) || all[0].Error == "" {
				t.Errorf("Workspaces = %+v, %v, want the error %q", all, listErr, err)
			}
			// It can be corrected.
			if w := addWorkspace(t, p, workspace.Spec{Name: "w", Source: "file://" + r.dir}); w.State != workspace.StateReady || w.Error != "" {
				t.Errorf("after a second AddWorkspace: %+v", w)
			}
		})
	}
}

// Errors omit the credentials that git's configuration adds to an address.
func TestErrorsOmitSecrets(t *testing.T) {
	r := newRepo(t)
	global := filepath.Join(t.TempDir(), "gitconfig")
	if err := os.WriteFile(global, []byte("[url \"http://me:hunter2@127.0.0.1:1/\"]\ninsteadOf = https://example.com/\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GIT_CONFIG_GLOBAL", global)
	p := newOnMock(t, workspace.Options{})
	_, err := workspace.Add(r.t.(*testing.T).Context(), p, &workspace.Spec{Name: "w", Source: "https://example.com/x.git"}, nil)
	if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("the error is %v", err)
	}
}

func TestLimits(t *testing.T) {
	r := newRepo(t)
	r.write("f", "x")
	r.commit()
	stall := make(chan struct{})
	defer close(stall)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	url := r.listen(func(w http.ResponseWriter, req *http.Request) {
		if strings.HasPrefix(req.URL.Path, "/given-up.git/") {
			cancel()
		}
		select {
		case <-stall:
		case <-req.Context().Done():
		}
	})
	p := newOnMock(t, workspace.Options{Timeout: 300 * time.Millisecond})
	_, err := workspace.Add(t.Context(), p, &workspace.Spec{Name: "slow", Source: url + "/x.git"}, nil)
	wantKind(t, "AddWorkspace that takes too long", err, atoll.ErrTimeout)

	// A caller that gives up records no error, and the next one clones.
	p = newOnMock(t, workspace.Options{})
	_, err = workspace.Add(ctx, p, &workspace.Spec{Name: "w", Source: url + "/given-up.git"}, nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("AddWorkspace that is given up: %v", err)
	}
	if all, err := workspace.List(t.Context(), p, ""); err != nil || len(all) != 1 || all[0].State != workspace.StateInitializing {
		t.Errorf("Workspaces = %+v, %v, want one that is initializing", all, err)
	}

	noise := make([]byte, 2<<20)
	rand.Read(noise) // never fails
	r.write("noise", string(noise))
	r.commit()
	p = newOnMock(t, workspace.Options{Limit: 1 << 20})
	_, err = workspace.Add(t.Context(), p, &workspace.Spec{Name: "large", Source: "file://" + r.dir}, nil)
	wantKind(t, "AddWorkspace of what is too large", err, atoll.ErrExhausted)
}

// The trees of a small repository list one file many times. The layer neither reads them into
// memory nor copies them into a sandbox.
func TestLimitOfCheckOut(t *testing.T) {
	r := newRepo(t)
	r.write("f", "x")
	small := r.commit()
	entry := "100644 blob " + r.git("rev-parse", "HEAD:f")
	for range 4 {
		var list strings.Builder
		for i := range 10 {
			fmt.Fprintf(&list, "%s\tn%d\n", entry, i)
		}
		entry = "040000 tree " + r.gitIn(list.String(), "mktree")
	}
	large := r.gitIn("", "-c", "user.name=t", "-c", "user.email=t@t", "commit-tree", "-p", small, "-m", "x", strings.Fields(entry)[2])
	r.git("update-ref", "refs/heads/large", large)
	source := "file://" + r.dir

	p := newOnMock(t, workspace.Options{Limit: 30 << 20})
	_, err := workspace.Add(t.Context(), p, &workspace.Spec{Name: "large", Source: source, Revision: "large"}, nil)
	wantKind(t, "AddWorkspace of a tree with 10000 files", err, atoll.ErrExhausted)
	addWorkspace(t, p, workspace.Spec{Name: "w", Source: source})
	spec := useWorkspace("w")
	spec.Workspace.Commit = large
	_, err = p.Create(t.Context(), &spec)
	wantKind(t, "Create with that commit", err, atoll.ErrExhausted)
	checkEmpty(t, p)

	p = newOnMock(t, workspace.Options{Limit: 64 << 20})
	addWorkspace(t, p, workspace.Spec{Name: "large", Source: source, Revision: "large"})
}

// cloneUntilKilled runs in a process of its own, which the test kills during the clone.
func cloneUntilKilled(dir string) {
	p, err := mock.New(mock.Options{Dir: filepath.Join(dir, "mock")})
	if err == nil {
		spec := workspace.Spec{Name: "w", Source: os.Getenv("ATOLL_TEST_SOURCE")}
		_, err = workspace.Add(context.Background(), workspace.New(p, workspace.Options{Dir: filepath.Join(dir, "w")}), &spec, nil)
	}
	fmt.Println("not killed:", err)
	os.Exit(1)
}

// isCloning reports whether git is cloning into dir.
func isCloning(t *testing.T, dir string) bool {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		line, _ := os.ReadFile(name) // fails if the process has just ended
		if strings.HasPrefix(string(line), "git\x00") && strings.Contains(string(line), dir) {
			return true
		}
	}
	return false
}

// A clone whose process was killed is reported correctly and repeated by the next user. Nothing
// of the first attempt remains.
func TestKilled(t *testing.T) {
	r := newRepo(t)
	r.write("f", "x")
	r.commit()
	begun, stall := make(chan struct{}, 10), make(chan struct{})
	real := r.serve(false, nil)
	var whole atomic.Bool
	proxy := r.listen(func(w http.ResponseWriter, req *http.Request) {
		if !whole.Load() && req.Method == "POST" {
			begun <- struct{}{}
			select {
			case <-stall:
			case <-req.Context().Done():
			}
			return
		}
		out, err := http.NewRequest(req.Method, strings.TrimSuffix(real, "/project/.git")+req.URL.RequestURI(), req.Body)
		if err != nil {
			t.Error(err)
			return
		}
		out.Header, out.ContentLength = req.Header, req.ContentLength
		resp, err := http.DefaultClient.Do(out)
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
		w.WriteHeader(resp.StatusCode)
		io.Copy(w, resp.Body)
	})
	defer http.DefaultClient.CloseIdleConnections()
	defer close(stall)
	dir := t.TempDir()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "ATOLL_TEST_WORKSPACES="+dir, "ATOLL_TEST_SOURCE="+proxy+"/project/.git")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	<-begun
	p := newOnMock(t, workspace.Options{Dir: filepath.Join(dir, "w")})
	state := func() workspace.State {
		t.Helper()
		all, err := workspace.List(t.Context(), p, "")
		if err != nil || len(all) != 1 {
			t.Fatalf("Workspaces = %+v, %v", all, err)
		}
		return all[0].State
	}
	if got := state(); got != workspace.StateCloning {
		t.Errorf("state during the clone: %s", got)
	}
	wantKind(t, "RemoveWorkspace while it is cloned", workspace.Remove(t.Context(), p, "", "w"), atoll.ErrConflict)
	_, err := workspace.Add(t.Context(), p, &workspace.Spec{Name: "w", Source: "file://" + r.dir}, nil)
	wantKind(t, "AddWorkspace while it is cloned", err, atoll.ErrAlreadyExists)
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // killed
	if got := state(); got != workspace.StateInitializing {
		t.Errorf("state after a killed clone: %s", got)
	}
	for deadline := time.Now().Add(testenv.Scale(10 * time.Second)); runtime.GOOS == "linux" && isCloning(t, dir); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("git continues without its parent")
		}
	}
	whole.Store(true)
	checkFile(t, createSandbox(t, p, useWorkspace("w")), "f", "x")
	entries, err := os.ReadDir(filepath.Join(dir, "w", "default", "w"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if len(names) != 3 || !strings.HasPrefix(names[0], "clone-") || names[1] != "lock" || names[2] != "workspace.json" {
		t.Errorf("there are %q, want the clone, the lock and the record", names)
	}
}
