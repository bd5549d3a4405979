package firecracker

var (
	Connect = dialSocket
	TryKVM  = tryKVM
)

// SetKVM has d probe another device.
func SetKVM(d *Driver, device string) { d.kvm = device }
