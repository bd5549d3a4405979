package main

import (
	"bytes"
	"context"
	_ "embed"
	"io"
	"os"
	"path/filepath"
	"text/template"
)

//go:embed files/atoll.rb.tmpl
var formulaText string

var formula = template.Must(template.New("formula").Parse(formulaText))

// writeInstallers writes the install script, the Homebrew formula, and the entry in the registry of MCP servers.
func (r *release) writeInstallers(context.Context) error {
	script, err := os.ReadFile("packaging/install.sh")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(r.dir, "install.sh"), script, 0o755); err != nil {
		return err
	}
	if err := r.createFile("atoll.rb", r.writeFormula); err != nil {
		return err
	}
	entry, err := marshalIndent(r.registryEntry())
	if err != nil {
		return err
	}
	return r.createFile("server.json", func(w io.Writer) error { _, err := w.Write(entry); return err })
}

// A formulaArchive holds the address and checksum of one platform's archive.
type formulaArchive struct{ URL, SHA256 string }

// writeFormula writes the Homebrew formula, which installs the archives of macOS and Linux.
func (r *release) writeFormula(w io.Writer) error {
	archives := map[string]map[string]formulaArchive{} // by OS and architecture
	for _, b := range r.built {
		if b.OS == "windows" {
			continue
		}
		name := r.archiveName(b)
		sum, err := r.sumFile(name)
		if err != nil {
			return err
		}
		if archives[b.OS] == nil {
			archives[b.OS] = map[string]formulaArchive{}
		}
		archives[b.OS][b.Arch] = formulaArchive{forge + "/releases/download/v" + r.version + "/" + name, sum}
	}
	var text bytes.Buffer
	err := formula.Execute(&text, map[string]any{
		"About": about, "Home": forge, "Version": r.version, "Archives": archives, "Systems": map[string]string{"darwin": "macos", "linux": "linux"},
	})
	if err != nil {
		return err
	}
	_, err = w.Write(text.Bytes())
	return err
}

// registryEntry returns the server.json of the registry of MCP servers.
func (r *release) registryEntry() any {
	return map[string]any{
		"$schema":     "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
		"name":        registryName,
		"title":       "Atoll",
		"description": about,
		"version":     r.version,
		"repository":  map[string]string{"url": forge, "source": "github"},
		"packages": []any{map[string]any{
			"registryType": "npm", "identifier": npmMain, "version": r.version, "transport": map[string]string{"type": "stdio"},
			"packageArguments": []any{map[string]string{"type": "positional", "value": "mcp"}},
		}},
	}
}
