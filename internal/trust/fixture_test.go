package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io/fs"
	"math/big"
	"slices"
	"testing"
	"time"
)

// memFiles are files in memory.
type memFiles struct {
	data   map[string]string
	links  map[string]string
	faults map[string]error // of reading, or of writing for "write NAME"
	writes []string
}

func (f *memFiles) ReadFile(name string) ([]byte, error) {
	if to, ok := f.links[name]; ok {
		name = to
	}
	if err := f.faults[name]; err != nil {
		return nil, err
	}
	data, ok := f.data[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return []byte(data), nil
}

func (f *memFiles) WriteFile(name string, data []byte) error {
	if to, ok := f.links[name]; ok {
		name = to
	}
	if err := f.faults["write "+name]; err != nil {
		return err
	}
	f.writes = append(f.writes, name)
	f.data[name] = string(data)
	return nil
}

// newFiles returns files of memory: names and data by turns.
func newFiles(namesAndData ...string) *memFiles {
	f := &memFiles{data: map[string]string{}, links: map[string]string{}, faults: map[string]error{}}
	for pair := range slices.Chunk(namesAndData, 2) {
		f.data[pair[0]] = pair[1]
	}
	return f
}

// An authority is a certificate authority for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(t *testing.T, name string) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, SubjectKeyId: []byte(name),
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
}
