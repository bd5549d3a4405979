package atoll

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

// What cannot confine itself does nothing at all, whichever way it is asked.
func TestSubFilesOfWhatCannot(t *testing.T) {
	bare := &plain{}
	for what, f := range map[string]FS{
		"another FS":  SubFiles(struct{ FS }{noFS{"x"}}, "/work"),
		"no FS":       SubFiles(Files(bare), "/work"),
		"a layer":     SubFiles(Files(SandboxLayer{bare}), "/work"),
		"one of one":  SubFiles(SubFiles(struct{ FS }{noFS{"x"}}, "/work"), "a"),
		"one of none": SubFiles(SubFiles(Files(bare), "/work"), "a"),
	} {
		ctx := context.Background()
		_, _, read := f.Read(ctx, "f", 0)
		_, write := f.Write(ctx, "f", strings.NewReader(""), WriteOptions{})
		_, stat := f.Stat(ctx, "f")
		_, list := f.List(ctx, "f", true)
		var watch error
		for _, watch = range f.Watch(ctx, "f", true) {
		}
		for method, err := range map[string]error{
			"Read": read, "Write": write, "Stat": stat, "List": list, "Watch": watch, "Mkdir": f.Mkdir(ctx, "f", 0), "Rename": f.Rename(ctx, "f", "g"),
			"Remove": f.Remove(ctx, "f", true), "WriteTar": f.WriteTar(ctx, "f", io.Discard), "ReadTar": f.ReadTar(ctx, "f", strings.NewReader("")),
		} {
			if !errors.Is(err, ErrUnsupported) {
				t.Errorf("%s of %s: %v, want %s", method, what, err, ErrUnsupported)
			}
		}
	}
}
