package workspace_test

import (
	"context"
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/layer/workspace"
	"github.com/seed46cd37a8/atoll/provider/local"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

func TestMain(m *testing.M) {
	// Ignore the git configuration of the machine.
	os.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	os.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	if dir := os.Getenv("ATOLL_TEST_WORKSPACES"); dir != "" {
		cloneUntilKilled(dir)
	}
	testenv.VerifyTestMain(m)
}

// A repo is a git repository.
type repo struct {
	t   testing.TB
	dir string
}

func newRepo(t testing.TB) *repo {
	t.Helper()
	testenv.Need(t, testenv.Program("git", "git"))
	r := &repo{t, filepath.Join(t.TempDir(), "project")}
	r.runGit("", "init", "-q", "-b", "main", r.dir)
	return r
}

func (r *repo) runGit(dir string, args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "protocol.file.allow=always"}, args...)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (r *repo) git(args ...string) string { r.t.Helper(); return r.runGit(r.dir, args...) }

// write writes a file in the work tree.
func (r *repo) write(name, text string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// commit commits all files and returns the commit id.
func (r *repo) commit() string {
	r.t.Helper()
	r.git("add", "-A")
	r.git("commit", "-q", "--allow-empty", "-m", "x")
	return r.git("rev-parse", "HEAD")
}

// serve serves the repository over HTTP, with git's own server or as plain files. It calls count
// at the beginning of each clone.
func (r *repo) serve(plain bool, count func()) (url string) {
	r.t.Helper()
	var files http.Handler = http.FileServer(http.Dir(filepath.Dir(r.dir)))
	if plain {
		r.git("update-server-info")
	} else {
		files = &cgi.Handler{
			Path:   filepath.Join(r.runGit("", "--exec-path"), "git-http-backend"),
			Stderr: io.Discard,
			Env:    []string{"GIT_PROJECT_ROOT=" + filepath.Dir(r.dir), "GIT_HTTP_EXPORT_ALL=1", "PATH=" + os.Getenv("PATH")},
		}
	}
	return r.listen(func(w http.ResponseWriter, req *http.Request) {
		if count != nil && strings.HasSuffix(req.URL.Path, "/info/refs") {
			count()
		}
		files.ServeHTTP(w, req)
	}) + "/project/.git"
}

func (r *repo) listen(h http.HandlerFunc) (url string) {
	s := httptest.NewServer(h)
	r.t.Cleanup(s.Close)
	return s.URL
}

// newLayer returns a provider with workspaces in dir.
func newLayer(t testing.TB, p atoll.Provider, err error, opts workspace.Options) atoll.Provider {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if opts.Dir == "" {
		opts.Dir = filepath.Join(t.TempDir(), "workspaces")
	}
	w := workspace.New(p, opts)
	t.Cleanup(func() { w.Close() })
	return w
}

func newOnMock(t testing.TB, opts workspace.Options) atoll.Provider {
	t.Helper()
	p, err := mock.New(mock.Options{Dir: t.TempDir()})
	return newLayer(t, p, err, opts)
}

func newOnLocal(t testing.TB, opts workspace.Options) atoll.Provider {
	t.Helper()
	p, err := local.New(local.Options{Dir: t.TempDir()})
	return newLayer(t, p, err, opts)
}

func addWorkspace(t testing.TB, p atoll.Provider, spec workspace.Spec) workspace.Workspace {
	t.Helper()
	w, err := workspace.Add(t.Context(), p, &spec, nil)
	if err != nil {
		t.Fatalf("AddWorkspace: %v", err)
	}
	return w
}

func createSandbox(t testing.TB, p atoll.Provider, spec atoll.Spec) atoll.Sandbox {
	t.Helper()
	sb, err := p.Create(t.Context(), &spec)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() { _ = sb.Remove(context.Background(), atoll.RemoveVolumes()) })
	return sb
}

func useWorkspace(name string) atoll.Spec {
	return atoll.Spec{Workspace: atoll.WorkspaceRef{Name: name}}
}

func getStatus(t testing.TB, sb atoll.Sandbox) atoll.Status {
	t.Helper()
	st, err := sb.Status(t.Context())
	if err != nil {
		t.Fatalf("Status: %v", err)
	}
	return st
}

// checkFile checks the content of a file in the sandbox.
func checkFile(t testing.TB, sb atoll.Sandbox, name, want string) {
	t.Helper()
	got, err := atoll.ReadFile(t.Context(), sb, name)
	if err != nil || string(got) != want {
		t.Errorf("%s holds %.80q, %v, want %.80q", name, got, err, want)
	}
}

func wantKind(t testing.TB, what string, err error, want atoll.Kind) {
	t.Helper()
	if atoll.KindOf(err) != want {
		t.Errorf("%s: error %v, of kind %q, want %q", what, err, atoll.KindOf(err), want)
	}
}

// checkEmpty checks that p has neither sandboxes nor volumes.
func checkEmpty(t testing.TB, p atoll.Provider) {
	t.Helper()
	all, err := p.List(t.Context(), atoll.Filter{})
	volumes, err2 := atoll.Volumes(t.Context(), p, "")
	if err != nil || err2 != nil || len(all)+len(volumes) != 0 {
		t.Errorf("remaining sandboxes %+v, %v and volumes %+v, %v", all, err, volumes, err2)
	}
}

// gitOutput runs a command in a sandbox of provider local.
func gitOutput(t testing.TB, sb atoll.Sandbox, args ...string) string {
	t.Helper()
	out, err := atoll.Output(t.Context(), sb, &atoll.Command{Args: args, Env: []string{"PATH=" + os.Getenv("PATH")}})
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}
