package providertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

var wallPromises = []promise{
	{"a sandbox sees no file of the host", []need{needIsolation}, func(t *testing.T, h *harness) {
		secret := h.newSecret(t)
		sb := h.plainSandbox(t)
		up := strings.Repeat("../", 20)
		for _, name := range []string{secret.file, up + secret.file, "/proc/1/root" + secret.file} {
			if res := h.runCommand(t, sb, programCommand("cat", name)); strings.Contains(string(res.Stdout), secret.text) {
				t.Errorf("cat %s printed the secret", name)
			}
		}
		h.runCommand(t, sb, scriptCommand("store", secret.file, "overwritten"))
		h.runCommand(t, sb, scriptCommand("store", secret.dir+"/new", "planted"))
		secret.checkUntouched(t)
	}},
	{"a sandbox sees no file of another sandbox", []need{needIsolation}, func(t *testing.T, h *harness) {
		a, b := h.plainSandbox(t), h.plainSandbox(t)
		for _, name := range []string{"/work/note", "/tmp/atoll-note"} {
			if h.runForCode(t, a, scriptCommand("store", name, "of a")) != 0 {
				t.Fatalf("the process could not write %s", name)
			}
			if h.runForCode(t, b, programCommand("cat", name)) == 0 {
				t.Errorf("%s of one sandbox can be read in another", name)
			}
		}
	}},
	{"writes to the root file system stay inside", []need{needIsolation}, func(t *testing.T, h *harness) {
		name := "/usr/atoll-" + atoll.NewID()
		h.runForCode(t, h.plainSandbox(t), scriptCommand("store", name, "x")) // it may fail
		if _, err := os.Stat(name); err == nil {
			os.Remove(name)
			t.Errorf("%s was made on the host", name)
		}
	}},
	{"a sandbox can neither see nor signal a process of the host", []need{needIsolation}, func(t *testing.T, h *harness) {
		victim := exec.Command("sleep", "1000")
		if err := victim.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- victim.Wait() }()
		defer func() {
			victim.Process.Kill()
			<-ended
		}()
		sb := h.plainSandbox(t)
		for _, pid := range []int{victim.Process.Pid, os.Getpid()} {
			cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if err != nil {
				t.Fatal(err)
			}
			if res := h.runCommand(t, sb, programCommand("cat", fmt.Sprintf("/proc/%d/cmdline", pid))); string(res.Stdout) == string(cmdline) {
				t.Errorf("process %d of the host can be seen from inside", pid)
			}
		}
		h.runForCode(t, sb, scriptCommand("hit", victim.Process.Pid)) // may hit a process with this number inside
		select {
		case err := <-ended:
			ended <- err
			t.Errorf("a process of the host was ended from inside: %v", err)
		case <-time.After(quietTime): // no event reports that nothing happened
		}
	}},
	{"a sandbox sees only its own processes", []need{needIsolation}, func(t *testing.T, h *harness) {
		a, b := h.plainSandbox(t), h.plainSandbox(t)
		_, scr := h.startReady(t, a, scriptCommand("family"))
		pid := strings.TrimSpace(scr.readText())
		if n, err := strconv.Atoi(pid); err != nil || n > 1000 {
			t.Skipf("pid %q inside is too large to identify its sandbox", pid)
		}
		h.checkAlive(t, a, pid)
		if res := h.runCommand(t, b, programCommand("cat", "/proc/"+pid+"/cmdline")); strings.Contains(string(res.Stdout), "sleep") {
			t.Errorf("process %s of one sandbox can be seen in another", pid)
		}
	}},
}

// A hostSecret is a file of this machine that no sandbox may see or change. Its directory holds a
// second file, the canary, whose name no test uses. If a sandbox shows that name, it has read the
// directory.
type hostSecret struct{ dir, file, text, canary string }

// newSecret writes a secret to a new directory.
func (h *harness) newSecret(t *testing.T) hostSecret {
	t.Helper()
	dir := t.TempDir()
	s := hostSecret{dir: dir, file: filepath.Join(dir, "secret"), text: "secret-" + atoll.NewID(), canary: "canary-" + atoll.NewID()}
	for _, name := range []string{s.file, filepath.Join(dir, s.canary)} {
		if err := os.WriteFile(name, []byte(s.text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// checkUntouched checks that the secret and its directory are unchanged.
func (s hostSecret) checkUntouched(t *testing.T) {
	t.Helper()
	if b, err := os.ReadFile(s.file); string(b) != s.text {
		t.Errorf("the secret was changed to %q, %v", b, err)
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("the secret's directory holds %v, %v; want only the secret and its canary", entries, err)
	}
}
