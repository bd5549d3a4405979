package stack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// moon is a plugin whose provider fails to open, with the received settings in its error.
const moon = `#!/bin/sh
read -r line
settings=$(printf %s "$line" | sed 's/.*"settings"://; s/}.*/}/; s/"//g')
printf '{"protocol":1,"error":{"kind":"denied","message":"it got %s"}}\n' "$settings"
cat >/dev/null
`

// A program that is not Atoll's gets its settings.
func TestOtherPlugins(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "atoll-moon"), []byte(moon), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ path, file, want string }{
		"in PATH":       {dir, "provider: moon\n", "it got {}"},
		"at its place":  {"/nowhere", "provider: moon\nplugin: {moon: {program: " + dir + "/atoll-moon, settings: [size=2, 'text=a b']}}\n", "it got {size:2,text:a b}"},
		"beside others": {dir, "provider: local\nproviders: [local, moon]\nplugin: {moon: {settings: a=b}}\n", "it got {a:b}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PATH", tt.path+string(os.PathListSeparator)+os.Getenv("PATH"))
			b, err := loadBuilder(t, tt.file, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			e, err := b.FindProvider("moon")
			if err != nil {
				t.Fatal(err)
			}
			p, err := b.OpenProvider(e, Options{})
			if err == nil {
				p.Close()
				t.Fatal("Open succeeded, want an error")
			}
			if atoll.KindOf(err) != atoll.ErrDenied || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
