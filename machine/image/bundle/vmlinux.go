package bundle

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
)

// maxKernel bounds a decompressed kernel, in bytes.
const maxKernel = 512 << 20

// Offsets in the header of a bzImage, see Documentation/arch/x86/boot.rst.
const (
	setupSects    = 0x1f1
	bootMagic     = 0x202
	versionAt     = 0x20e
	payloadOffset = 0x248
	payloadLength = 0x24c
	bzHeader      = 0x250
	sector        = 512
)

// A kernelImage is a kernel in the format of a distribution.
type kernelImage struct {
	data    []byte
	release string // "6.1.0-56-cloud-amd64"; "" if unknown
	elf     bool   // an ELF file, not a bzImage
}

// readKernel reads the kernel at path: a bzImage, a vmlinux or an arm64 Image. It
// decompresses a file that is compressed as a whole.
func readKernel(path string) (*kernelImage, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	plain, err := newDecompressor(f)
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	data, err := io.ReadAll(io.LimitReader(plain, maxKernel+1))
	if err != nil {
		return nil, newDamageError(err, "%s cannot be read", path)
	}
	k := &kernelImage{data: data}
	switch {
	case len(data) > maxKernel:
		return nil, newDamageError(nil, "%s is too large for a kernel", path)
	case isELF(data):
		k.elf = true
	case k.isBzImage():
		at := int(binary.LittleEndian.Uint16(data[versionAt:])) + sector
		if at > sector && at < len(data) {
			text, _, _ := bytes.Cut(data[at:min(at+256, len(data))], []byte{0})
			release, _, _ := bytes.Cut(text, []byte(" "))
			k.release = string(release)
		}
	case len(data) > 64 && string(data[56:60]) == "ARM\x64":
	default:
		return nil, newDamageError(nil, "%s is not a kernel: it must be a bzImage, a vmlinux or an arm64 Image", path)
	}
	return k, nil
}

func isELF(data []byte) bool { return bytes.HasPrefix(data, []byte("\x7fELF")) }

func (k *kernelImage) isBzImage() bool {
	return len(k.data) > bzHeader && string(k.data[bootMagic:bootMagic+4]) == "HdrS"
}

// extractELF returns the ELF file in a bzImage, which Firecracker boots; nil for a
// kernel without one.
func (k *kernelImage) extractELF() ([]byte, error) {
	if k.elf {
		return k.data, nil
	}
	if !k.isBzImage() {
		return nil, nil
	}
	sects := int(k.data[setupSects])
	if sects == 0 {
		sects = 4 // of old
	}
	from := uint64(sects+1)*sector + uint64(binary.LittleEndian.Uint32(k.data[payloadOffset:]))
	length := uint64(binary.LittleEndian.Uint32(k.data[payloadLength:]))
	if length < 4 || from+length > uint64(len(k.data)) {
		return nil, newDamageError(nil, "the kernel has no payload")
	}
	payload := k.data[from : from+length]
	if isELF(payload) {
		return payload, nil
	}
	// The last four bytes of the payload are the decompressed size. Some formats would
	// take them for the start of another stream.
	size := binary.LittleEndian.Uint32(payload[length-4:])
	r, err := newDecompressor(bytes.NewReader(payload[:length-4]))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data := make([]byte, 0, min(size, maxKernel))
	buf := bytes.NewBuffer(data)
	if _, err := io.CopyN(buf, r, int64(min(size, maxKernel))); err != nil && buf.Len() == 0 {
		return nil, newDamageError(err, "the kernel's payload cannot be decompressed")
	}
	if !isELF(buf.Bytes()) {
		return nil, newDamageError(nil, "the kernel's payload is not an ELF file, or has an unknown compression (%x)", payload[:min(6, len(payload))])
	}
	if uint32(buf.Len()) != size {
		return nil, newDamageError(nil, "the kernel's payload has %d bytes and should have %d", buf.Len(), size)
	}
	return buf.Bytes(), nil
}

func (k *kernelImage) String() string { return fmt.Sprintf("kernel %s", k.release) }
