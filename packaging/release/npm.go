package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// npmNames are npm's names of systems and architectures, by Go's.
var npmNames = map[string]string{"linux": "linux", "darwin": "darwin", "windows": "win32", "amd64": "x64", "arm64": "arm64"}

// npmMain is the name of npm's package that users install. It depends on one package for each platform,
// of which npm installs the one that fits: no script runs at the installation.
const npmMain = "atoll"

// registryName is the name of the MCP server in the registry of MCP servers. npm's package must contain it.
const registryName = "io.github.seed46cd37a8/atoll"

//go:embed files/atoll.js
var npmStarter []byte

// A npmPackage is a package.json.
type npmPackage struct {
	Name                 string            `json:"name"`
	Version              string            `json:"version"`
	Description          string            `json:"description"`
	License              string            `json:"license"`
	Homepage             string            `json:"homepage"`
	Repository           map[string]string `json:"repository"`
	MCPName              string            `json:"mcpName,omitempty"`
	Bin                  map[string]string `json:"bin,omitempty"`
	Files                []string          `json:"files"`
	OS                   []string          `json:"os,omitempty"`
	CPU                  []string          `json:"cpu,omitempty"`
	Engines              map[string]string `json:"engines,omitempty"`
	OptionalDependencies map[string]string `json:"optionalDependencies,omitempty"`
}

// newNPMPackage returns what all package.json files have in common.
func (r *release) newNPMPackage(name string) npmPackage {
	return npmPackage{
		Name: name, Version: r.version, Description: about, License: "Apache-2.0", Homepage: forge,
		Repository: map[string]string{"type": "git", "url": "git+" + forge + ".git"}, Files: []string{"bin"},
	}
}

// writeNPM writes npm's packages: one with atoll for each platform, and the main one, to be published last.
func (r *release) writeNPM(context.Context) error {
	main := r.newNPMPackage(npmMain)
	main.MCPName, main.Engines = registryName, map[string]string{"node": ">=18"}
	main.Bin, main.OptionalDependencies = map[string]string{"atoll": "bin/atoll.js"}, map[string]string{}
	for _, b := range r.built {
		system, arch := npmNames[b.OS], npmNames[b.Arch]
		p := r.newNPMPackage(fmt.Sprintf("@%s/%s-%s", npmMain, system, arch))
		p.OS, p.CPU = []string{system}, []string{arch}
		main.OptionalDependencies[p.Name] = r.version
		if err := r.writeNPMPackage(fmt.Sprintf("%s-%s-%s", npmMain, system, arch), p, b.mainFiles("bin")...); err != nil {
			return err
		}
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		return err
	}
	return r.writeNPMPackage(npmMain, main, file{name: "bin/atoll.js", data: npmStarter, executable: true}, file{name: "README.md", data: readme})
}

// writeNPMPackage writes one package, as npm pack does.
func (r *release) writeNPMPackage(name string, p npmPackage, files ...file) error {
	text, err := marshalIndent(p)
	if err != nil {
		return err
	}
	license, err := os.ReadFile("LICENSE")
	if err != nil {
		return err
	}
	files = append([]file{{name: "package.json", data: text}, {name: "LICENSE", data: license}}, files...)
	for i := range files {
		files[i].name = "package/" + files[i].name
	}
	return r.createFile(fmt.Sprintf("npm-%s-%s.tgz", name, r.version), func(w io.Writer) error { return writeTarGz(w, r.time, files) })
}

// marshalIndent returns v as JSON for humans, in which < and > are themselves.
func marshalIndent(v any) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(v)
	return text.Bytes(), err
}
