package workspace_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/workspace"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// newSmallRepo creates a repository with two files, and returns it with its address.
func newSmallRepo(t testing.TB) (*repo, string) {
	t.Helper()
	r := newRepo(t)
	r.write("f", "text")
	r.write("dir/g", "more")
	r.commit()
	return r, "file://" + r.dir
}

// The main process finds the check-out.
func TestMainProcess(t *testing.T) {
	_, url := newSmallRepo(t)
	p := newOnLocal(t, workspace.Options{})
	sb := createSandbox(t, p, atoll.Spec{Workspace: atoll.WorkspaceRef{Source: url}, Workdir: "/work/dir", Cmd: []string{"cat", "g"}, AutoRemove: true})
	proc, err := sb.Process(t.Context(), atoll.MainProcess)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := proc.Attach(t.Context(), &atoll.Attachment{Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	if out.String() != "more" {
		t.Errorf("the main process printed %q", &out)
	}
}

// If any call during the creation fails, nothing remains.
func TestCreateFails(t *testing.T) {
	_, url := newSmallRepo(t)
	m, err := mock.New(mock.Options{Dir: t.TempDir()})
	opts := workspace.Options{Dir: filepath.Join(t.TempDir(), "w")}
	p := newLayer(t, m, err, opts)
	addWorkspace(t, p, workspace.Spec{Name: "w", Source: url})
	spec := useWorkspace("w")
	for n := 1; ; n++ {
		plan := providertest.FailCall(n)
		_, err := workspace.New(providertest.Faulty(m, plan), opts).Create(t.Context(), &spec)
		if !plan.Fired() {
			if err != nil || n < 5 {
				t.Errorf("after %d calls: %v", n, err)
			}
			return
		}
		if err == nil {
			t.Errorf("call %d failed: %q, but Create succeeded", n, plan.Calls())
		}
		checkEmpty(t, p)
	}
}

// A failed Create does not remove a volume that existed before.
func TestCreateFailsWithKeptVolume(t *testing.T) {
	_, url := newSmallRepo(t)
	p := newOnLocal(t, workspace.Options{})
	addWorkspace(t, p, workspace.Spec{Name: "w", Source: url})
	spec := useWorkspace("w")
	spec.ID = atoll.NewID()
	sb := createSandbox(t, p, spec)
	if err := atoll.WriteFile(t.Context(), sb, "mine", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	bad := spec
	bad.Cmd = []string{"/no/such/program"}
	_, err := p.Create(t.Context(), &bad)
	wantKind(t, "Create", err, atoll.ErrCommandNotFound)
	sb = createSandbox(t, p, spec)
	checkFile(t, sb, "mine", "x")
	bad.ID = ""
	_, err = p.Create(t.Context(), &bad)
	wantKind(t, "Create", err, atoll.ErrCommandNotFound)
	if volumes, err := atoll.Volumes(t.Context(), p, ""); err != nil || len(volumes) != 1 {
		t.Errorf("the volumes are %+v, %v, want the one that was kept", volumes, err)
	}
}

// The first start finishes a check-out that a crash interrupted at any stage.
func TestRepair(t *testing.T) {
	_, url := newSmallRepo(t)
	p := newOnMock(t, workspace.Options{})
	addWorkspace(t, p, workspace.Spec{Name: "w", Source: url})
	for name, cut := range map[string]func(atoll.FS) error{
		"before it began": func(files atoll.FS) error {
			var errs []error
			for _, name := range []string{".git", "dir", "f"} {
				errs = append(errs, files.Remove(t.Context(), name, true))
			}
			return errors.Join(errs...)
		},
		"half way": func(files atoll.FS) error {
			_, err := files.Write(t.Context(), ".git/atoll-unfinished", strings.NewReader("x"), atoll.WriteOptions{})
			_, err2 := files.Write(t.Context(), "f", strings.NewReader("te"), atoll.WriteOptions{})
			_, err3 := files.Write(t.Context(), "stale", strings.NewReader("x"), atoll.WriteOptions{})
			return errors.Join(err, err2, err3, files.Remove(t.Context(), "dir", true), files.Remove(t.Context(), ".git/index", false))
		},
	} {
		t.Run(name, func(t *testing.T) {
			spec := useWorkspace("w")
			spec.NoStart = true
			sb := createSandbox(t, p, spec)
			if err := cut(atoll.Files(sb)); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					if err := sb.Start(context.Background()); err != nil {
						t.Errorf("Start: %v", err)
					}
				})
			}
			wg.Wait()
			checkFile(t, sb, "f", "text")
			checkFile(t, sb, "dir/g", "more")
			for _, name := range []string{"stale", ".git/atoll-unfinished"} {
				if _, err := atoll.Files(sb).Stat(t.Context(), name); atoll.KindOf(err) != atoll.ErrNotExist {
					t.Errorf("%s is there: %v", name, err)
				}
			}
			if _, err := atoll.Files(sb).Stat(t.Context(), ".git/index"); err != nil {
				t.Error(err)
			}
		})
	}
}

// A sandbox that has been started is not changed.
func TestStartedIsLeftAlone(t *testing.T) {
	_, url := newSmallRepo(t)
	p := newOnMock(t, workspace.Options{})
	sb := createSandbox(t, p, atoll.Spec{Workspace: atoll.WorkspaceRef{Source: url}})
	for _, name := range []string{".git", "dir", "f"} {
		if err := atoll.Files(sb).Remove(t.Context(), name, true); err != nil {
			t.Fatal(err)
		}
	}
	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if list, err := atoll.Files(sb).List(t.Context(), "/work", false); err != nil || len(list) != 0 {
		t.Errorf("the work directory holds %+v, %v, want nothing", list, err)
	}
}
