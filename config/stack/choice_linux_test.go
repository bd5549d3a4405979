package stack

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// weakVar makes the test binary a process in which gVisor cannot work. It writes its findings to a file.
const weakVar = "ATOLL_CODE_TEST_WEAK"

// found has the findings of look.
type found struct {
	Provider string   // Info's
	Members  []string // names of atoll.Members
	Before   string   // log before the creation of a sandbox
	After    string
	Err      string // of the creation
	Kind     atoll.Kind
	Noted    bool // the note that gVisor works exists
}

// look opens a stack without a configured provider, and tries to create a sandbox.
func look(t *testing.T, state string) (f found) {
	t.Helper()
	b, err := loadBuilder(t, "", []string{"ATOLL_STATE_DIR=" + state, "ATOLL_DOCKER_PLAIN=true", "ATOLL_DOCKER_HOST=unix://" + filepath.Join(state, "engine")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	p, err := b.Open(Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	f.Provider, f.Before = p.Info().Name, log.String()
	members, err := atoll.Members(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		f.Members = append(f.Members, m.Name)
	}
	if _, err := p.List(t.Context(), atoll.Filter{}); err != nil {
		t.Errorf("List: %v", err)
	}
	if _, err := p.Create(t.Context(), &atoll.Spec{Image: "nowhere/at/all"}); err != nil {
		f.Err, f.Kind = err.Error(), atoll.KindOf(err)
	}
	f.After = log.String()
	_, err = os.Stat(filepath.Join(state, "gvisor", "works"))
	f.Noted = !errors.Is(err, fs.ErrNotExist)
	return f
}

// If gVisor works, it is the default provider. It is probed once per boot of the machine.
func TestGVisorIsTheDefault(t *testing.T) {
	testenv.Need(t, testenv.Root)
	b, err := loadBuilder(t, "", []string{"ATOLL_STATE_DIR=" + t.TempDir()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p, _ := b.tryProvider(t.Context(), "gvisor"); !p.OK {
		t.Skipf("gVisor does not work here: %s; %s", p.Reason, p.Fix)
	}
	for range 2 {
		if got := b.Choose(t.Context()); got != (Choice{Provider: "gvisor"}) {
			t.Errorf("Choose: %+v", got)
		}
	}
	note, text := b.proofFile("gvisor")
	if got, err := os.ReadFile(note); err != nil || string(got) != text {
		t.Errorf("the note is %q, %v, want %q", got, err, text)
	}
	if err := os.WriteFile(note, []byte("of another boot 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.Choose(t.Context())
	if got, err := os.ReadFile(note); err != nil || string(got) != text {
		t.Errorf("the note after another boot is %q, %v, want %q", got, err, text)
	}
}

// If gVisor cannot work, an engine that answers replaces it. Without an engine, Create fails with advice for both.
// List works in both cases.
func TestWhereGVisorCannotWork(t *testing.T) {
	if state := os.Getenv(weakVar); state != "" {
		text, err := json.Marshal(look(t, state))
		if err == nil {
			err = os.WriteFile(filepath.Join(state, "found"), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	testenv.Need(t, testenv.Root)
	for _, engine := range []bool{true, false} {
		state := t.TempDir()
		if engine {
			serveEngine(t, filepath.Join(state, "engine"))
		}
		f := weakly(t, state)
		want := found{Provider: "gvisor", Kind: atoll.ErrUnavailable}
		if engine {
			want = found{Provider: "docker", Kind: f.Kind}
		}
		if f.Provider != want.Provider || f.Kind != want.Kind || f.Err == "" || f.Noted {
			t.Errorf("engine %v: %+v, want %+v", engine, f, want)
		}
		if f.Members[0] != want.Provider || !slices.Contains(f.Members, "gvisor") || !slices.Contains(f.Members, "microvm") {
			t.Errorf("engine %v: the providers are %q", engine, f.Members)
		}
		if warnings := strings.Count(f.After, "are created by docker"); strings.Contains(f.Before, "created by") || (warnings == 1) != engine {
			t.Errorf("engine %v: the log is\n%s and then\n%s", engine, f.Before, f.After)
		}
		for _, what := range []string{"gvisor: ", "docker: no Docker Engine", "DOCKER_HOST", "--provider"} {
			if strings.Contains(f.Err, what) == engine {
				t.Errorf("engine %v: the error is %q, which must have %q only without an engine", engine, f.Err, what)
			}
		}
	}
}

// weakly runs look in a process whose root user cannot create namespaces.
func weakly(t *testing.T, state string) (f found) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestWhereGVisorCannotWork$")
	cmd.Env = append(os.Environ(), weakVar+"="+state)
	ended := make(chan error)
	var out []byte
	go func() {
		runtime.LockOSThread() // for good: the thread ends without the capability
		err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_ADMIN, 0, 0, 0)
		if err == nil {
			out, err = cmd.CombinedOutput()
		}
		ended <- err
	}()
	if err := <-ended; err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(state, "found"))
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// serveEngine serves an empty engine on a socket, which cannot create anything.
func serveEngine(t *testing.T, socket string) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	answers := map[string]string{
		"/_ping": "OK", "/version": `{"Version":"29.0.0","ApiVersion":"1.44","MinAPIVersion":"1.24","Arch":"` + runtime.GOARCH + `"}`,
		"/info": `{"ID":"x","OSType":"linux"}`, "/containers/json": "[]", "/images/json": "[]", "/volumes": "{}",
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		if rest, ok := strings.CutPrefix(path, "/v1.44"); ok {
			path = rest
		}
		w.Header().Set("Api-Version", "1.44")
		w.Header().Set("Content-Type", "application/json")
		if answers[path] == "" {
			w.WriteHeader(http.StatusNotFound)
			w.Write([]byte(`{"message":"there is nothing"}`))
			return
		}
		w.Write([]byte(answers[path]))
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
}
