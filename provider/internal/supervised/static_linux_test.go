package supervised

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/seed46cd37a8/atoll/provider/internal/elf"
)

func TestIsStatic(t *testing.T) {
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program, text := filepath.Join(dir, "program"), filepath.Join(dir, "text")
	for path, data := range map[string][]byte{program: (&elf.Program{Machine: 62, Text: []byte{0x90}}).Assemble(), text: []byte("#!/bin/sh\n")} {
		if err := os.WriteFile(path, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]bool{shell: false, program: true} {
		if got, err := IsStatic(path); got != want || err != nil {
			t.Errorf("%s: %v, %v", path, got, err)
		}
	}
	if _, err := IsStatic(text); err == nil {
		t.Error("a script is an executable")
	}
}
