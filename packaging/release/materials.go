package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// toolsDir is the directory of the module that pins the tools of a release.
const toolsDir = "packaging/tools"

// toolPath builds a tool, and returns the path of its program.
func toolPath(ctx context.Context, name string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "-C", toolsDir, "tool", "-n", name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath", "GOWORK=off")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("build %s, a tool of %s: %w", name, toolsDir, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// writeMaterials writes an archive with the bill of materials of each program, in the format of
// CycloneDX: the modules in it, with their versions and checksums. Programs inside others have their own.
func (r *release) writeMaterials(ctx context.Context) error {
	tool, err := toolPath(ctx, "cyclonedx-gomod")
	if err != nil {
		return err
	}
	var files []file
	for _, b := range r.built {
		for _, name := range slices.Sorted(maps.Keys(b.paths)) {
			var errors bytes.Buffer
			cmd := exec.CommandContext(ctx, tool, "bin", "-json", "-std", "-noserial", "-notimestamp", "-version", "v"+r.version, b.paths[name])
			cmd.Stderr = &errors
			text, err := cmd.Output()
			if err != nil {
				return fmt.Errorf("list the materials of %s for %s: %w\n%s", name, b, err, errors.Bytes())
			}
			files = append(files, file{name: fmt.Sprintf("%s_%s_%s_%s.cdx.json", name, r.version, b.OS, b.Arch), data: text})
		}
	}
	return r.createFile(fmt.Sprintf("atoll_%s_sbom.tar.gz", r.version), func(w io.Writer) error { return writeTarGz(w, r.time, files) })
}
