package mock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

func newMock(t *testing.T, opts mock.Options) *mock.Provider {
	t.Helper()
	p, err := mock.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// crashDir is an environment variable. If it is set, the test binary creates a sandbox in that
// directory and waits until it is killed.
const crashDir = "ATOLL_TEST_CRASH_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		p, err := mock.New(mock.Options{Dir: dir})
		if err == nil {
			err = providertest.CreateAndWait(p, os.Stdin, os.Stdout)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func TestConformance(t *testing.T) {
	var opts []providertest.Option
	if testing.Short() {
		opts = append(opts, providertest.Only("create", "output", "tty", "watch", "remove", "pause"),
			providertest.SkipRest("-short: these are those that do much at once"))
	}
	providertest.Run(t, func(t *testing.T) atoll.Provider { return newMock(t, mock.Options{}) }, append(opts,
		providertest.OtherProcess(func(t *testing.T) (*exec.Cmd, func() atoll.Provider) {
			dir, maker := t.TempDir(), exec.Command(os.Args[0])
			maker.Env = append(os.Environ(), crashDir+"="+dir)
			return maker, func() atoll.Provider { return newMock(t, mock.Options{Dir: dir}) }
		}),
		providertest.FailSteps(func(t *testing.T, step func(string) error) atoll.Provider {
			return newMock(t, mock.Options{}.WithStep(step))
		}),
		providertest.Count(100), providertest.Parallel(4, "expiry"), providertest.PullableImage("docker.io/library/app:1"))...)
}

func TestAddress(t *testing.T) {
	p := newMock(t, mock.Options{})
	defer p.Close()
	sb, err := p.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	st, err := sb.Status(t.Context())
	if err != nil || st.Address != "http://mock:3002" || st.Image != "mock:latest" {
		t.Errorf("status %+v, %v", st, err)
	}
}

func TestPrograms(t *testing.T) {
	p := newMock(t, mock.Options{Programs: map[string]mock.Program{
		"agent": func(p *mock.Proc) int {
			in, _ := io.ReadAll(p.Stdin)
			fmt.Fprintf(p.Stdout, "%s got %s", p.Args[1], in)
			return 9
		},
		"true": func(*mock.Proc) int { return 1 },
	}})
	defer p.Close()
	sb, err := p.Create(t.Context(), &atoll.Spec{Env: []string{"WHO=world"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args   []string
		stdout string
		stderr string
		code   int
	}{
		{[]string{"agent", "it"}, "it got input", "", 9},
		{[]string{"/usr/bin/true"}, "", "", 1},
		{[]string{"sh", "-c", `echo "hello $WHO" '$WHO'; exit 3; echo no`}, "hello world $WHO\n", "", 3},
		{[]string{"sh", "-c", "nope"}, "", "sh: nope: not found\n", 127},
		{[]string{"sh", "script"}, "", "sh: only -c SCRIPT or a terminal is supported\n", 2},
		{[]string{"printf", `a\nb`}, "a\nb", "", 0},
	} {
		res, err := atoll.Capture(t.Context(), sb, &atoll.Command{Args: tt.args, Stdin: strings.NewReader("input")}, 0)
		if err != nil || string(res.Stdout) != tt.stdout || string(res.Stderr) != tt.stderr || res.Code != tt.code {
			t.Errorf("%q: stdout %q, stderr %q, code %d, %v; want %q, %q, %d", tt.args, res.Stdout, res.Stderr, res.Code, err, tt.stdout, tt.stderr, tt.code)
		}
	}
}

func TestBefore(t *testing.T) {
	fault := atoll.Errorf("exec", "", atoll.ErrExhausted, "as planned")
	var ops []string
	p := newMock(t, mock.Options{Before: func(_ context.Context, op string, n int) error {
		ops = append(ops, op)
		if n == 3 {
			return fault
		}
		return nil
	}})
	defer p.Close()
	sb, err := p.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []error{nil, fault, nil} {
		if err := atoll.Run(t.Context(), sb, &atoll.Command{Args: []string{"true"}}); err != want {
			t.Errorf("exec number %d: %v, want %v", i, err, want)
		}
	}
	for range p.Watch(t.Context()) {
		break
	}
	if got := strings.Join(ops, " "); got != "create exec exec exec watch" || p.Calls() != 5 {
		t.Errorf("%d calls: %s", p.Calls(), got)
	}
}

func TestFuncs(t *testing.T) {
	injected := errors.New("injected")
	p := newMock(t, mock.Options{Funcs: mock.Funcs{
		Get:  func(context.Context, string) (atoll.Sandbox, error) { return nil, injected },
		List: func(context.Context, atoll.Filter) ([]atoll.Status, error) { return nil, injected },
		Watch: func(context.Context) iter.Seq2[atoll.Event, error] {
			return func(yield func(atoll.Event, error) bool) { yield(atoll.Event{}, injected) }
		},
		Status:  func(context.Context, string) (atoll.Status, error) { return atoll.Status{}, injected },
		Start:   func(context.Context, string) error { return injected },
		Stop:    func(context.Context, string, time.Duration) error { return injected },
		Exec:    func(context.Context, string, *atoll.Command) (atoll.Process, error) { return nil, injected },
		Process: func(context.Context, string, string) (atoll.Process, error) { return nil, injected },
		Remove:  func(context.Context, string, atoll.RemoveOptions) error { return injected },
	}})
	defer p.Close()
	ctx := t.Context()
	sb, err := p.Create(ctx, &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	results := map[string]error{"Start": sb.Start(ctx), "Stop": sb.Stop(ctx, 0), "Remove": sb.Remove(ctx)}
	_, results["Get"] = p.Get(ctx, sb.ID())
	_, results["List"] = p.List(ctx, atoll.Filter{})
	_, results["Status"] = sb.Status(ctx)
	_, results["Exec"] = sb.Exec(ctx, &atoll.Command{Args: []string{"true"}})
	_, results["Process"] = sb.Process(ctx, "x")
	for _, results["Watch"] = range p.Watch(ctx) {
	}
	for call, err := range results {
		if err != injected {
			t.Errorf("%s: %v, want the injected error", call, err)
		}
	}
	refusing := newMock(t, mock.Options{Funcs: mock.Funcs{
		Create: func(context.Context, *atoll.Spec) (atoll.Sandbox, error) { return nil, injected },
	}})
	defer refusing.Close()
	if _, err := refusing.Create(ctx, &atoll.Spec{}); err != injected {
		t.Errorf("Create: %v, want the injected error", err)
	}
}

func TestCloseRemovesItsDirectoryOnly(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	p := newMock(t, mock.Options{})
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("the temporary directory holds %v", entries)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("Close left %v", entries)
	}
	kept := dir + "/kept"
	if err := newMock(t, mock.Options{Dir: kept}).Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("Close removed a directory that is not its own: %v", err)
	}
}
