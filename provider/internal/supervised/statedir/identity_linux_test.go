package statedir

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A process may have any name, even "x) S 1 1".
func TestIdentityOfOddNames(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	must(t, "sleep", err)
	data, err := os.ReadFile(sleep)
	must(t, "read", err)
	odd := filepath.Join(t.TempDir(), "x) S 1 1")
	must(t, "write", os.WriteFile(odd, data, 0o755))
	plain, err := Identify(os.Getpid())
	must(t, "identify", err)
	cmd := exec.Command(odd, "1000")
	cmd.Args[0] = "sleep"
	must(t, "start", cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	id, err := Identify(cmd.Process.Pid)
	if err != nil || len(id.Start) < len(plain.Start) || id.Boot != plain.Boot {
		t.Errorf("identity %+v, %v, that of this process is %+v", id, err, plain)
	}
}
