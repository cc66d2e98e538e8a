package backend

// Tenants returns how many tenants are remembered.
func Tenants(b *Backend) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.tenants.all)
}

// RampLeft returns how much longer the ramp lasts.
func RampLeft(b *Backend) int64 {
	t := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	return int64(max(0, b.since+b.ramp-t))
}
