package guest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// A jobRoom runs jobs: the guest is the first process of its PID namespace, as it is in a
// container, and has the file system of this computer.
type jobRoom struct{ guest, job, workdir string }

func newJobRoom(t *testing.T) *jobRoom {
	t.Helper()
	testenv.Need(t, testenv.Root)
	program, err := testenv.Guest()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := &jobRoom{filepath.Join(dir, "guest"), filepath.Join(dir, "job"), filepath.Join(dir, "work")}
	if err := os.WriteFile(p.guest, program, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(p.job, 0o700); err != nil {
		t.Fatal(err)
	}
	return p
}

// run runs a shell's script as a job's program, whose $1 is where its outcome is to be.
func (p *jobRoom) run(t *testing.T, script string, change func(*jobs.Job)) Outcome {
	t.Helper()
	outcome := filepath.Join(p.job, OutcomeFile)
	job := Job{
		Machine: Config{ID: id, Workdir: p.workdir, User: "0", Self: p.guest, Offline: true},
		Compute: jobs.Job{
			Spec: atoll.Spec{Workdir: p.workdir}, Args: []string{"sh", "-c", script, "sh", outcome}, Timeout: atoll.Duration(time.Minute),
			MaxOutput: 1000, MaxFiles: 10, MaxFileSize: 1000, MaxContent: 1000,
		},
	}
	if change != nil {
		change(&job.Compute)
	}
	text, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.job, JobFile), text, 0o600); err != nil {
		t.Fatal(err)
	}
	// A directory of that name that this machine has is not made over to the job's user.
	const begin = `mount -t proc proc /proc && { [ ! -d "$0" ] || mount -t tmpfs none "$0"; } && exec "$@"`
	cmd := exec.CommandContext(t.Context(), "sh", "-c", begin, atoll.DefaultWorkdir, p.guest, "job", p.job)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID, Unshareflags: unix.CLONE_NEWNS}
	if said, err := cmd.CombinedOutput(); err != nil || len(said) > 0 {
		t.Fatalf("%s: %v: %s", script, err, said)
	}
	info, err := os.Lstat(outcome)
	if err != nil || info.Mode() != 0o644 {
		t.Fatalf("%s: its outcome is %v, %v, want a plain file", script, info, err)
	}
	text, err = os.ReadFile(outcome)
	if err != nil {
		t.Fatal(err)
	}
	var o Outcome
	if err := json.Unmarshal(text, &o); err != nil {
		t.Fatalf("%s: %v: its outcome is %q", script, err, text)
	}
	return o
}

func TestJob(t *testing.T) {
	p := newJobRoom(t)
	o := p.run(t, `cat in; printf '\000\377'; echo oops >&2; echo made >out; exit 3`, func(j *jobs.Job) {
		j.Files = []jobs.File{{Name: "in", Data: []byte("x")}}
		j.Install = []string{"sh", "-c", ": >installed"}
	})
	if r := o.Result; r == nil || o.Kind != "" || r.Exit.Code != 3 || string(r.Stdout.Data) != "x\x00\xff" || string(r.Stderr.Data) != "oops\n" {
		t.Errorf("its outcome is %+v, of %+v", o, r)
	} else if len(r.Artifacts) != 1 || r.Artifacts[0].Path != "out" || string(r.Artifacts[0].Data) != "made\n" {
		t.Errorf("it has left %+v", r.Artifacts)
	}
	for kind, change := range map[atoll.Kind]func(*jobs.Job){
		atoll.ErrCommandNotFound: func(j *jobs.Job) { j.Args = []string{"no-such-program"} },
		atoll.ErrInvalid:         func(j *jobs.Job) { j.Files = []jobs.File{{Name: "in\x00", Data: []byte("x")}} },
	} {
		if o := p.run(t, "", change); o.Result != nil || o.Kind != kind || o.Message == "" {
			t.Errorf("its outcome is %+v, want an error of kind %s", o, kind)
		}
	}
}

// A file that a program writes in place of its outcome does not become the outcome, nor can a
// background process of the program write it later.
func TestJobForged(t *testing.T) {
	p := newJobRoom(t)
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	for _, script := range []string{
		`echo '{"kind":"not_found"}' >"$1"`,
		`mkdir -p "$1/full/of"`,
		`ln -s ` + elsewhere + ` "$1"`,
		`for i in 1 2 3; do setsid sh -c 'trap "" TERM HUP; while :; do echo "{\"kind\":\"not_found\"}" >"$1"; done' sh "$1" >/dev/null 2>&1 & done`,
		`(while :; do mkdir "$1"; rmdir "$1"; done) >/dev/null 2>&1 &`,
	} {
		o := p.run(t, script+"\necho real", nil)
		if r := o.Result; r == nil || o.Kind != "" || string(r.Stdout.Data) != "real\n" {
			t.Errorf("%s: its outcome is %+v, of %+v", script, o, r)
		}
	}
	if _, err := os.Lstat(elsewhere); err == nil {
		t.Error("the outcome was written where the program's link leads")
	}
}
