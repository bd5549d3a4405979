package gcdelay

import (
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"testing"
)

// printVar makes this program print the percentages before and after End.
const printVar = "ATOLL_TEST_PRINT"

func TestMain(m *testing.M) {
	if os.Getenv(printVar) == "" {
		os.Exit(m.Run())
	}
	before := debug.SetGCPercent(-1)
	debug.SetGCPercent(before)
	End()
	println(before, debug.SetGCPercent(-1))
}

// The collector is delayed until End, unless the user has set GOGC.
func TestDelay(t *testing.T) {
	for gogc, want := range map[string]string{"": "400 100", "50": "50 50", "off": "-1 -1"} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), printVar+"=1", "GOGC="+gogc)
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("with GOGC=%s: %q, %v, want %q", gogc, got, err, want)
		}
	}
}
