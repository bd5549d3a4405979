package output

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// fuzz holds a dialect to its promises, whatever is printed.
func fuzz(f *testing.F, format string) {
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
		end := ending{exit: atoll.Exit{Code: code}}
		step, sum := read(t, format, lines, end)
		check(t, step, sum)
		if again, s := read(t, format, lines, end); golden(t, again, s) != golden(t, step, sum) {
			t.Fatal("the same lines gave something else")
		}
		var texts strings.Builder
		for _, e := range step.Events {
			if e.Type == TextDelta {
				texts.WriteString(e.Delta)
			}
		}
		for _, line := range lines {
			s := plain(bytes.TrimSuffix(valid(line), []byte("\r")))
			if object(valid(line)) == nil && strings.TrimSpace(s) != "" && !strings.Contains(texts.String(), s+"\n") {
				t.Fatalf("lost: %q", line)
			}
		}
	})
}

func FuzzClaude(f *testing.F) { fuzz(f, "claude") }

func FuzzCodex(f *testing.F) { fuzz(f, "codex") }
