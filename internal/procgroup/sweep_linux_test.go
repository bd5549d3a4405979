package procgroup

import (
	"os/exec"
	"strings"
	"testing"
)

// An environment that is larger than the buffer is read to its end.
func TestEnvironIsLong(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	cmd.Env = []string{"LONG=" + strings.Repeat("x", 100<<10), "MARK=end"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	environ, known := "", false
	for !known { // Start may return in the middle of the exec
		environ, known = environOf(cmd.Process.Pid, make([]byte, 1<<10))
	}
	if !strings.HasSuffix(environ, "MARK=end\x00") {
		t.Errorf("%d bytes of the environment are read", len(environ))
	}
}
