package secretref

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRef(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "token"), "from-file\n")
	write(t, filepath.Join(dir, "empty"), "\n")
	t.Setenv("TEST_SECRET", "from-env")
	tests := []struct {
		text     string
		variable bool
		want     string
		shown    string
		err      error
	}{
		{"env:TEST_SECRET", false, "from-env", "env:TEST_SECRET", nil},
		{"file:" + dir + "/token", false, "from-file", "file:" + dir + "/token", nil},
		{"literal", true, "literal", masked, nil},
		{"with:colon", true, "with:colon", masked, nil},
		{"env:TEST_SECRET_UNSET", false, "", "env:TEST_SECRET_UNSET", errors.New("not set")},
		{"file:" + dir + "/empty", false, "", "file:" + dir + "/empty", errors.New("the file is empty")},
		{"file:" + dir + "/none", false, "", "file:" + dir + "/none", fs.ErrNotExist},
	}
	for _, tt := range tests {
		var s Ref
		if err := s.Parse(tt.text, tt.variable, ""); err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		got, err := s.Reveal()
		if got != tt.want || (err == nil) != (tt.err == nil) {
			t.Errorf("%s: Reveal() = %q, %v, want %q, %v", tt.text, got, err, tt.want, tt.err)
		}
		if err != nil && !errors.Is(err, tt.err) && !strings.Contains(err.Error(), tt.err.Error()) {
			t.Errorf("%s: error %v, want %v", tt.text, err, tt.err)
		}
		if s.Reference() != tt.shown {
			t.Errorf("%s: shown as %q, want %q", tt.text, s.Reference(), tt.shown)
		}
	}
}

func TestRefNeverPrints(t *testing.T) {
	s := New("hunter2")
	j, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range []string{
		s.String(), s.LogValue().String(), string(j), fmt.Sprint(s), fmt.Sprintf("%v %+v %#v %q %x %d", s, s, s, s, s, s),
		fmt.Sprintf("%v", &s),
	} {
		if strings.Contains(got, "hunter2") || !strings.Contains(got, masked) {
			t.Errorf("printed %q, want %s", got, masked)
		}
	}
	if s := (Ref{}); !s.IsZero() || s.String() != "" {
		t.Errorf("the zero secret prints %q, want nothing", s)
	}
}
