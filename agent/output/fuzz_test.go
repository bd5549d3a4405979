package output

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// fuzzFormat checks the promises of a format for any output.
func fuzzFormat(f *testing.F, format string) {
	files, err := filepath.Glob("testdata/*.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, 0)
		f.Add(data[:len(data)/2], 1)
	}
	f.Fuzz(func(t *testing.T, data []byte, code int) {
		lines := bytes.Split(data, []byte("\n"))
		end := runEnd{exit: atoll.Exit{Code: code}}
		step, sum := parseLines(t, format, lines, end)
		checkStep(t, step, sum)
		if again, s := parseLines(t, format, lines, end); formatGolden(t, again, s) != formatGolden(t, step, sum) {
			t.Fatal("the same lines gave something else")
		}
		var texts strings.Builder
		for _, e := range step.Events {
			if e.Type == TextDelta {
				texts.WriteString(e.Delta)
			}
		}
		for _, line := range lines {
			s := plainText(bytes.TrimSuffix(toValidUTF8(line), []byte("\r")))
			if trimObject(toValidUTF8(line)) == nil && strings.TrimSpace(s) != "" && !strings.Contains(texts.String(), s+"\n") {
				t.Fatalf("lost: %q", line)
			}
		}
	})
}

func FuzzClaude(f *testing.F) { fuzzFormat(f, "claude") }

func FuzzCodex(f *testing.F) { fuzzFormat(f, "codex") }
