//go:build linux

package hostroot

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll/internal/process"
)

// certVars are the variables with which programs find the certificates that this machine trusts.
var certVars = []string{
	"AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO", "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", "CURL_CA_BUNDLE", "DENO_CERT", "GIT_SSL_CAINFO",
	"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "HTTPLIB2_CA_CERTS", "NIX_SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "NPM_CONFIG_CAFILE", "PIP_CERT",
	"REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE", "npm_config_cafile",
}

// DefaultPath is the PATH of commands if nothing sets one.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// hostCerts are the directories and files of the host's /etc with certificates that a sandbox sees.
var hostCerts = []string{"/etc/ca-certificates", "/etc/pki/ca-trust", "/etc/pki/tls/cert.pem", "/etc/pki/tls/certs", "/etc/ssl/certs"}

// Env returns the environment of this machine's programs in a sandbox that sees its root file system: the PATH of
// env and the variables of certificates, as far as the sandbox sees what they name. extra names the paths that it sees
// in addition.
func Env(env, extra []string) []string {
	seen := slices.Concat(trees, hostCerts, extra)
	var dirs []string
	for dir := range strings.SplitSeq(process.Lookup(env, "PATH")+":"+DefaultPath, ":") {
		if !slices.Contains(dirs, dir) && (slices.Contains(strings.Split(DefaultPath, ":"), dir) || isSeen(dir, seen)) {
			dirs = append(dirs, dir)
		}
	}
	vars := []string{"PATH=" + strings.Join(dirs, ":")}
	for _, name := range certVars {
		if path := process.Lookup(env, name); isSeen(path, seen) {
			vars = append(vars, name+"="+path)
		}
	}
	return vars
}

// isSeen reports whether an absolute path exists and, with its links followed, lies in one of the seen trees.
func isSeen(path string, seen []string) bool {
	if !filepath.IsAbs(path) {
		return false
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false
	}
	for _, p := range []string{filepath.Clean(path), real} {
		below := func(tree string) bool { return p == tree || strings.HasPrefix(p, tree+string(os.PathSeparator)) }
		if !slices.ContainsFunc(seen, below) || slices.ContainsFunc(hiddenParts, below) {
			return false
		}
	}
	return true
}
