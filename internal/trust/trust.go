// Package trust makes the programs in a sandbox trust a certificate authority: it adds the certificate to the stores of the system, and
// says which variables the programs need that have a store of their own.
package trust

import (
	"bytes"
	"cmp"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// Files are the files of a sandbox, by absolute names inside. Links lead where they lead inside.
type Files interface {
	ReadFile(name string) ([]byte, error)     // fs.ErrNotExist if there is none
	WriteFile(name string, data []byte) error // makes missing directories; a new file has the mode 0644
}

// Where systems have their bundles of certificates.
const (
	debianBundle = "/etc/ssl/certs/ca-certificates.crt" // also Alpine and Arch
	redHatBundle = "/etc/pki/tls/certs/ca-bundle.crt"
	fedoraBundle = "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem" // the others of Red Hat are links to it
	suseBundle   = "/etc/ssl/ca-bundle.pem"
	alpineBundle = "/etc/ssl/cert.pem" // often a link to debianBundle
)

// Where systems take local certificates from when they make their bundles again.
const (
	debianAnchor = "/usr/local/share/ca-certificates/atoll.crt"
	redHatAnchor = "/etc/pki/ca-trust/source/anchors/atoll.pem"
)

// ownFile has the certificate alone, for variables that add to the roots of a program.
const ownFile = "/etc/atoll/ca.pem"

// A variable names a file of certificates.
type variable struct {
	name string
	adds bool // to the roots of the program; otherwise the file replaces them
	keep bool // Install does not set it
	fold bool // programs ignore the case of the name
}

// listVariables returns the variables that Install knows. SSL_CERT_DIR is not among them: it would hide the directory of the system.
//
// SSL_CERT_FILE, which OpenSSL, Go, Rust and Bun read, is right even if the bundle has nothing but our certificate: then the system had no
// bundle before, and such a program trusted nothing.
//
// npm needs no variable of its own, since it reads NODE_EXTRA_CA_CERTS. With a cafile from anywhere, npm does not read
// NODE_EXTRA_CA_CERTS any more; npm_config_cafile would also replace the cafile of an npmrc, and with it the roots of a private registry.
// So Install leaves npm_config_cafile unset, and adds the certificate to the cafile that the user has chosen.
func listVariables() []variable {
	return []variable{
		{name: "SSL_CERT_FILE"},
		{name: "REQUESTS_CA_BUNDLE"},
		{name: "CURL_CA_BUNDLE"},
		{name: "GIT_SSL_CAINFO"},
		{name: "PIP_CERT"},
		{name: "AWS_CA_BUNDLE"},
		{name: "CARGO_HTTP_CAINFO"},
		{name: "CODEX_CA_CERTIFICATE"},
		{name: "npm_config_cafile", keep: true, fold: true},
		{name: "NODE_EXTRA_CA_CERTS", adds: true},
		{name: "DENO_CERT", adds: true},
	}
}

// Install adds the certificate, in PEM, to the stores, and returns the variables ("KEY=value") that programs need in addition. env has the
// variables that the image and the user set: Install leaves them alone, but adds the certificate to the files that they name; a variable
// without a value counts as not set. The warnings say what does not trust the certificate, and why. Install replaces the certificate of an
// earlier call, and writes nothing if it is the same.
func Install(files Files, cert []byte, env []string) (vars, warnings []string, err error) {
	block, _ := pem.Decode(cert)
	if block == nil || block.Type != certificateType {
		return nil, nil, errors.New("the certificate of the gateway is not in PEM")
	}
	// The file of an authority has its private key, too. Only the certificate may get into the sandbox.
	i := &installer{files: files, der: block.Bytes, pem: pem.EncodeToMemory(&pem.Block{Type: certificateType, Bytes: block.Bytes})}
	i.findOld()
	system, err := i.addToSystem()
	if err != nil {
		return nil, nil, err
	}
	if err := i.writeFile(ownFile, i.pem); err != nil {
		return nil, nil, err
	}
	for _, v := range listVariables() {
		switch chosen := findVariable(env, v); {
		case chosen != "":
			i.addToChosen(v.name, chosen)
		case v.adds:
			vars = append(vars, v.name+"="+ownFile)
		case !v.keep && system != "":
			vars = append(vars, v.name+"="+system)
		}
	}
	i.addToNPM(env)
	if dir := findVariable(env, variable{name: "SSL_CERT_DIR"}); dir != "" {
		i.addWarning("SSL_CERT_DIR=%s is set: programs that read it may not trust the gateway of Atoll; unset it", dir)
	}
	return vars, i.warnings, nil
}

// findVariable returns the value of a variable, "" if it is not set. The last one counts.
func findVariable(env []string, v variable) (value string) {
	for _, entry := range env {
		name, text, ok := strings.Cut(entry, "=")
		if ok && (name == v.name || v.fold && strings.EqualFold(name, v.name)) {
			value = text
		}
	}
	return value
}

// An installer adds a certificate to the files of a sandbox.
type installer struct {
	files    Files
	der, pem []byte
	old      [][]byte // certificates of earlier calls, in DER
	warnings []string
}

// maxWarnings is the maximum number of warnings, and maxWarning the length in bytes of each: they have names from files of the sandbox.
const maxWarnings, maxWarning = 20, 500

func (i *installer) addWarning(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); len(i.warnings) < maxWarnings {
		i.warnings = append(i.warnings, strings.ToValidUTF8(text[:min(len(text), maxWarning)], ""))
	}
}

// findOld reads the certificates that earlier calls wrote. The system may have put them into its bundle, without our marker lines.
func (i *installer) findOld() {
	for _, name := range []string{debianAnchor, redHatAnchor, ownFile} {
		data, err := i.files.ReadFile(name)
		if err != nil {
			continue
		}
		if block, _ := pem.Decode(data); block != nil && !bytes.Equal(block.Bytes, i.der) {
			i.old = append(i.old, block.Bytes)
		}
	}
}

// addToSystem adds the certificate to the bundles of the system, and returns the first one that has it. If there is none, it makes one.
// It returns "" if there are only bundles that it cannot read.
func (i *installer) addToSystem() (system string, err error) {
	exists := map[string]bool{}
	for _, name := range []string{debianBundle, redHatBundle, fedoraBundle, suseBundle, alpineBundle} {
		data, err := i.files.ReadFile(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			i.addWarning("programs that read %s do not trust the gateway of Atoll: %v", name, err)
		default:
			if err := i.addToFile(name, data); err != nil {
				return "", err
			}
			if system == "" {
				system = name
			}
		}
		exists[name] = true
	}
	if exists[debianBundle] || i.fileExists("/etc/debian_version") || i.fileExists("/etc/alpine-release") {
		i.addAnchor(debianAnchor)
	}
	if exists[redHatBundle] || exists[fedoraBundle] {
		i.addAnchor(redHatAnchor)
	}
	if len(exists) > 0 {
		return system, nil
	}
	return debianBundle, i.addToFile(debianBundle, nil)
}

func (i *installer) fileExists(name string) bool {
	_, err := i.files.ReadFile(name)
	return err == nil
}

// addAnchor writes the certificate where the system looks for local ones.
func (i *installer) addAnchor(name string) {
	if err := i.writeFile(name, i.pem); err != nil {
		i.addWarning("when the system makes its certificates again, programs stop trusting the gateway of Atoll: %v", err)
	}
}

// addToFile adds the certificate to a file with the given data.
func (i *installer) addToFile(name string, data []byte) error {
	want := addCertificate(data, i.der, i.pem, i.old)
	if bytes.Equal(want, data) {
		return nil
	}
	if err := i.files.WriteFile(name, want); err != nil {
		return fmt.Errorf("write certificates to %s: %w", name, err)
	}
	return nil
}

// addToChosen adds the certificate to the file that the image or the user has chosen with a setting.
func (i *installer) addToChosen(setting, name string) {
	if err := i.addToChosenFile(name); err != nil {
		i.addWarning("programs that read %s=%s do not trust the gateway of Atoll: %v", setting, name, err)
	}
}

func (i *installer) addToChosenFile(name string) error {
	const maxName = 4096
	if !path.IsAbs(name) || len(name) > maxName {
		return errors.New("the value is not an absolute path")
	}
	data, err := i.files.ReadFile(name)
	if err != nil {
		return err
	}
	switch {
	case bytes.Contains(data, []byte("PRIVATE KEY-----")): // readers of certificates must not get it
		return errors.New("the file has a private key")
	case len(data) > 0 && !bytes.Contains(data, []byte(beginPrefix)): // such as DER or JKS, which text would damage
		return errors.New("the file has no certificates in PEM")
	}
	return i.addToFile(name, data)
}

// addToNPM adds the certificate to the files that the npmrc files of the system and of the user name. Those of projects are not known here.
func (i *installer) addToNPM(env []string) {
	if findVariable(env, variable{name: "npm_config_cafile", fold: true}) != "" { // then npm ignores the others
		return
	}
	home := cmp.Or(findVariable(env, variable{name: "HOME"}), "/root")
	for _, name := range []string{"/etc/npmrc", "/usr/etc/npmrc", "/usr/local/etc/npmrc", path.Join(home, ".npmrc")} {
		data, err := i.files.ReadFile(name)
		if err != nil || len(data) > maxNPM {
			continue
		}
		chosen := ""
		for line := range strings.Lines(string(data)) {
			key, value, _ := strings.Cut(line, "=")
			if strings.TrimSpace(key) == "cafile" {
				chosen = strings.Trim(strings.TrimSpace(value), `"'`) // the last one counts
			}
		}
		if chosen != "" {
			i.addToChosen(name+": cafile", chosen)
		}
	}
}

// maxNPM is the size in bytes of the largest npmrc file that counts.
const maxNPM = 64 << 10

// writeFile writes a file, unless it has the data already.
func (i *installer) writeFile(name string, data []byte) error {
	if old, err := i.files.ReadFile(name); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := i.files.WriteFile(name, data); err != nil {
		return fmt.Errorf("write certificate to %s: %w", name, err)
	}
	return nil
}
