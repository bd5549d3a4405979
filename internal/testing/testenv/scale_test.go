package testenv

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestParseSlowness(t *testing.T) {
	tests := []struct {
		text string
		want float64 // 0 for an error
	}{
		{"1", 1}, {"1.0", 1}, {"2.5", 2.5}, {"30", 30}, {"1000", 1000},
		{"", 0}, {"x", 0}, {"2x", 0}, {"0.99", 0}, {"0", 0}, {"-3", 0}, {"NaN", 0}, {"Inf", 0}, {"1001", 0}, {"1,5", 0},
	}
	for _, tt := range tests {
		got, err := parseSlowness(tt.text)
		if got != tt.want || (err == nil) != (tt.want > 0) {
			t.Errorf("%q: got %v and %v, want %v", tt.text, got, err, tt.want)
		}
		if err != nil && !strings.Contains(err.Error(), slowVar) {
			t.Errorf("%q: the error does not name the variable: %v", tt.text, err)
		}
	}
}

// scaledVar is a variable that makes the test binary print the result of Scale for a second.
const scaledVar = "ATOLL_TEST_SCALED"

// TestScale runs this program again, since a program reads the factor only once.
func TestScale(t *testing.T) {
	if os.Getenv(scaledVar) != "" {
		if got, want := Scale(time.Second), time.Duration(Slowness()*float64(time.Second)); got != want {
			t.Errorf("Scale = %v, want %v by Slowness", got, want)
		}
		t.Logf("a second is %v", Scale(time.Second))
		return
	}
	tests := map[string]struct {
		env  []string
		want string // substring of the output
		fail bool
	}{
		"unset":     {nil, "a second is 1s", false},
		"one":       {[]string{slowVar + "=1"}, "a second is 1s", false},
		"a factor":  {[]string{slowVar + "=2.5"}, "a second is 2.5s", false},
		"malformed": {[]string{slowVar + "=fast"}, `panic: testenv: CHECK_SLOWNESS="fast": must be a decimal number`, true},
		"below 1":   {[]string{slowVar + "=0.5"}, `panic: testenv: CHECK_SLOWNESS="0.5": must be a decimal number`, true},
		"empty":     {[]string{slowVar + "="}, `panic: testenv: CHECK_SLOWNESS="": must be a decimal number`, true},
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestScale$", "-test.v")
			for _, e := range os.Environ() {
				if !strings.HasPrefix(e, slowVar+"=") {
					cmd.Env = append(cmd.Env, e)
				}
			}
			cmd.Env = append(append(cmd.Env, scaledVar+"=1"), tt.env...)
			out, err := cmd.CombinedOutput()
			if (err != nil) != tt.fail || !strings.Contains(string(out), tt.want) {
				t.Errorf("%v, want %q in:\n%s", err, tt.want, out)
			}
		})
	}
}
