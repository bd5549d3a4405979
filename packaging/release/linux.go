package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
)

// A linuxPackage is the configuration of nfpm, which reads JSON as YAML.
type linuxPackage struct {
	Name        string           `json:"name"`
	Arch        string           `json:"arch"`
	Platform    string           `json:"platform"`
	Version     string           `json:"version"`
	Section     string           `json:"section"`
	Priority    string           `json:"priority"`
	Maintainer  string           `json:"maintainer"`
	Description string           `json:"description"`
	Homepage    string           `json:"homepage"`
	License     string           `json:"license"`
	MTime       string           `json:"mtime"`
	Suggests    []string         `json:"suggests"`
	Contents    []packageContent `json:"contents"`
	Deb         map[string]any   `json:"deb"`
	RPM         map[string]any   `json:"rpm"`
}

// A packageContent is one file of a package.
type packageContent struct {
	Source string `json:"src"`
	Target string `json:"dst"`
	Format string `json:"packager,omitempty"` // the only one with the file: deb or rpm
	Info   struct {
		Mode  int    `json:"mode"`
		MTime string `json:"mtime"`
	} `json:"file_info"`
}

// about describes Atoll to package managers.
const about = "Isolated sandboxes in which AI agents run commands, write files and keep their work"

// writeLinuxPackages writes a package for Debian and one for RPM for each architecture.
func (r *release) writeLinuxPackages(ctx context.Context) error {
	nfpm, err := toolPath(ctx, "nfpm")
	if err != nil {
		return err
	}
	for _, b := range r.built {
		if b.OS != "linux" {
			continue
		}
		p, err := r.newLinuxPackage(b)
		if err != nil {
			return err
		}
		text, err := json.Marshal(p)
		if err != nil {
			return err
		}
		settings := filepath.Join(r.work, "nfpm-"+b.Arch+".yaml")
		if err := os.WriteFile(settings, text, 0o644); err != nil {
			return err
		}
		for _, format := range []string{"deb", "rpm"} {
			target := filepath.Join(r.dir, fmt.Sprintf("atoll_%s_linux_%s.%s", r.version, b.Arch, format))
			cmd := exec.CommandContext(ctx, nfpm, "package", "--config", settings, "--packager", format, "--target", target)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("write a %s for %s: %w\n%s", format, b, err, out)
			}
		}
	}
	return nil
}

// newLinuxPackage returns the configuration of nfpm for a platform, and writes the files that it names.
func (r *release) newLinuxPackage(b build) (*linuxPackage, error) {
	at := r.time.Format("2006-01-02T15:04:05Z")
	p := &linuxPackage{
		Name: "atoll", Arch: b.Arch, Platform: "linux", Version: r.version, Section: "admin", Priority: "optional",
		Maintainer: "The Atoll authors <seed46cd37a8@users.noreply.github.com>", Description: about, Homepage: forge, License: "Apache-2.0", MTime: at,
		Suggests: []string{"docker.io", "qemu-system"},
		Deb:      map[string]any{"compression": "zstd"}, // Debian 12, Ubuntu 22.04 and later read it
		RPM:      map[string]any{"compression": "zstd", "buildhost": "localhost", "group": "Applications/System"},
	}
	unit, err := os.ReadFile("packaging/atoll.service")
	if err != nil {
		return nil, err
	}
	files := b.programFiles("/usr/bin")
	files = append(files, file{name: "/usr/lib/systemd/system/atoll.service", data: bytes.Replace(unit, []byte("/usr/local/bin/"), []byte("/usr/bin/"), 1)})
	for _, f := range r.extras {
		f.name = linuxPath(f.name)
		files = append(files, f)
	}
	for i, f := range files {
		if f.path == "" {
			f.path = filepath.Join(r.work, fmt.Sprintf("content-%s-%d", b.Arch, i))
			if err := os.WriteFile(f.path, f.data, 0o644); err != nil {
				return nil, err
			}
		}
		c := packageContent{Source: f.path, Target: f.name}
		c.Info.Mode, c.Info.MTime = int(f.fileMode()), at
		if dir, base := path.Split(f.name); dir == zshDebian {
			c.Format = "deb"
			other := c
			other.Target, other.Format = "/usr/share/zsh/site-functions/"+base, "rpm"
			p.Contents = append(p.Contents, other)
		}
		p.Contents = append(p.Contents, c)
	}
	return p, nil
}

// zshDebian is the directory in which Debian's zsh finds completions.
const zshDebian = "/usr/share/zsh/vendor-completions/"

// linuxPath returns where a file of the archives is in a package.
func linuxPath(name string) string {
	dirs := map[string]string{
		"man": "/usr/share/man/man1", "completions/bash": "/usr/share/bash-completion/completions",
		"completions/zsh": zshDebian, "completions/fish": "/usr/share/fish/vendor_completions.d",
		".": "/usr/share/doc/atoll",
	}
	base := path.Base(name)
	if name == "LICENSE" {
		base = "copyright"
	}
	return path.Join(dirs[path.Dir(name)], base)
}
