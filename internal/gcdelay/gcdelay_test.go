package gcdelay

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"
	"time"
)

// modeVar makes this program print the percentages before and after a collection.
const modeVar = "ATOLL_TEST_GC"

func TestMain(m *testing.M) {
	if os.Getenv(modeVar) == "" {
		os.Exit(m.Run())
	}
	before := readPercent()
	runtime.GC()
	for end := time.Now().Add(5 * time.Second); readPercent() == atStart && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // the cleanup runs on its own
	}
	fmt.Println(before, readPercent())
}

// readPercent returns GOGC as the runtime has it; -1 if the collector is off.
func readPercent() int64 {
	sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}

// The first collection is delayed, and no other one, unless the user has set GOGC.
func TestDelay(t *testing.T) {
	for gogc, want := range map[string]string{"": "400 100", "50": "50 50", "off": "-1 -1"} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), modeVar+"=1", "GOGC="+gogc)
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("GOGC=%s: %q, %v, want %q", gogc, got, err, want)
		}
	}
}
