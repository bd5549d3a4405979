package trust

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// dirFiles are the files below a directory.
type dirFiles string

func (d dirFiles) ReadFile(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(string(d), name))
}

func (d dirFiles) WriteFile(name string, data []byte) error {
	file := filepath.Join(string(d), name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

// newDirFiles returns files with a bundle of Debian.
func newDirFiles(t *testing.T, bundle string) dirFiles {
	t.Helper()
	files := dirFiles(t.TempDir())
	if err := files.WriteFile(debianBundle, []byte(bundle)); err != nil {
		t.Fatal(err)
	}
	return files
}

// serveTLS starts a server on loopback with a certificate of the authority, and returns its URL. It also serves an empty git repository.
func serveTLS(t *testing.T, a authority) string {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
		_, _ = w.Write([]byte("001e# service=git-upload-pack\n00000000"))
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: a.key}}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL
}

// environ returns the variables of this process without those that Install knows.
func environ() []string {
	return slices.DeleteFunc(os.Environ(), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		known := slices.ContainsFunc(listVariables(), func(v variable) bool { return strings.EqualFold(name, v.name) })
		return known || name == "SSL_CERT_DIR" || strings.HasSuffix(strings.ToLower(name), "_proxy")
	})
}

// Programs trust a server with the certificate, in a bundle whose other roots are in the way, and do not trust it without the variables.
func TestPrograms(t *testing.T) {
	t.Parallel()
	ours := newAuthority(t, "ours")
	root := newAuthority(t, "root").pem
	url := serveTLS(t, ours)
	files := newDirFiles(t, "# A root\r\n"+strings.ReplaceAll(root, "\n", "\r\n")+strings.TrimSuffix(root, "\n"))
	installCert(t, files, newAuthority(t, "older"))
	vars, _ := installCert(t, files, ours)
	env := environ()
	for _, entry := range vars {
		name, file, _ := strings.Cut(entry, "=")
		env = append(env, name+"="+string(files)+file)
	}
	for name, test := range map[string]struct {
		pkg  string
		args []string
	}{
		"curl":    {"curl", []string{"-sSf", url}},
		"git":     {"git", []string{"ls-remote", url}},
		"node":    {"nodejs", []string{"-e", "fetch(process.argv[1]).catch(() => process.exit(1))", url}},
		"openssl": {"openssl", []string{"s_client", "-verify_return_error", "-connect", strings.TrimPrefix(url, "https://")}},
		"python3": {"python3", []string{"-c", "import sys, urllib.request; urllib.request.urlopen(sys.argv[1])", url}},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Need(t, testenv.Program(name, test.pkg))
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), name, test.args...)
			cmd.Env = env
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("with the variables: %v: %s", err, out)
			}
			cmd = exec.CommandContext(t.Context(), name, test.args...)
			cmd.Env = environ()
			if out, err := cmd.CombinedOutput(); err == nil {
				t.Errorf("trusts the server without the variables: %s", out)
			}
		})
	}
}

// OpenSSL reads each root of a bundle, whatever surrounds it.
func TestOpenSSL(t *testing.T) {
	testenv.Need(t, testenv.Program("openssl", "openssl"))
	root, ours, older := newAuthority(t, "root"), newAuthority(t, "ours"), newAuthority(t, "older")
	old := string(addCertificate(nil, older.cert.Raw, []byte(older.pem), nil))
	for name, bundle := range map[string]string{
		"empty": "", "no newline": strings.TrimSpace(root.pem), "CRLF": strings.ReplaceAll(root.pem, "\n", "\r\n"), "older block": old + root.pem, "cut off": root.pem + old[:200],
	} {
		files := newDirFiles(t, bundle)
		installCert(t, files, ours)
		for who, a := range map[string]authority{"root": root, "ours": ours, "older": older} {
			leaf := filepath.Join(t.TempDir(), "leaf.pem")
			if err := os.WriteFile(leaf, []byte(a.pem), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "openssl", "verify", "-x509_strict", "-no-CApath", "-no-CAstore", "-CAfile", string(files)+debianBundle, leaf)
			want := who == "ours" || who == "root" && bundle != ""
			if out, err := cmd.CombinedOutput(); (err == nil) != want {
				t.Errorf("%s: openssl trusts %s: %v, want %v: %s", name, who, err == nil, want, out)
			}
		}
	}
}

// update-ca-certificates makes the bundle again, and takes our certificate from the anchor.
func TestUpdateCACertificates(t *testing.T) {
	const program = "/usr/sbin/update-ca-certificates"
	testenv.Need(t, testenv.Program(program, "ca-certificates"), testenv.Program("openssl", "openssl"))
	root, ours, other := newAuthority(t, "root"), newAuthority(t, "ours"), newAuthority(t, "other")
	files := newDirFiles(t, root.pem)
	installCert(t, files, ours)
	if err := files.WriteFile("/usr/share/ca-certificates/root.crt", []byte(root.pem)); err != nil {
		t.Fatal(err)
	}
	if err := files.WriteFile("/etc/ca-certificates.conf", []byte("root.crt\n")); err != nil {
		t.Fatal(err)
	}
	update := func() {
		t.Helper()
		dir := string(files)
		cmd := exec.CommandContext(t.Context(), program, "--certsconf", dir+"/etc/ca-certificates.conf", "--certsdir", dir+"/usr/share/ca-certificates",
			"--localcertsdir", dir+filepath.Dir(debianAnchor), "--etccertsdir", dir+filepath.Dir(debianBundle), "--hooksdir", dir+"/none")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", program, err, out)
		}
	}
	check := func(step string, want ...int) {
		t.Helper()
		data, err := files.ReadFile(debianBundle)
		if got := countCerts(string(data), root, ours, other); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: counts of root, ours and other = %v, %v, want %v", step, got, err, want)
		}
	}
	update()
	check("update", 1, 1, 0)
	before, err := files.ReadFile(debianBundle)
	if err != nil || strings.Contains(string(before), beginLine) {
		t.Fatalf("the update keeps our block: %v", err)
	}
	installCert(t, files, ours)
	if after, err := files.ReadFile(debianBundle); err != nil || string(after) != string(before) {
		t.Errorf("Install after the update writes the bundle: %v", err)
	}
	installCert(t, files, other)
	check("Install of another certificate", 1, 0, 1)
	update()
	check("update after that", 1, 0, 1)
}
