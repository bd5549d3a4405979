package sshd

import (
	"crypto/ed25519"
	"encoding/pem"

	"golang.org/x/crypto/ssh"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// loadHostKey reads the server's key. It creates a missing key and keeps it, since
// clients refuse a server whose key has changed.
func loadHostKey(path string) (ssh.Signer, error) {
	const op, most = "ssh host key", 64 << 10
	data, _, err := fsutil.LoadSecret(op, path, most, newHostKey)
	if err != nil {
		return nil, err
	}
	key, err := ssh.ParsePrivateKey(data)
	if _, locked := err.(*ssh.PassphraseMissingError); locked {
		return nil, atoll.Errorf(op, path, atoll.ErrInvalid, "key has a passphrase: use a key without one")
	}
	if err != nil {
		return nil, atoll.Errorf(op, path, atoll.ErrInvalid,
			"key is damaged (%w): restore it, or delete it to get a new one, which clients refuse until they have removed the old one", err)
	}
	return key, nil
}

// newHostKey returns a new key in OpenSSH's format.
func newHostKey() ([]byte, error) {
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(private, "atoll")
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(block), nil
}
