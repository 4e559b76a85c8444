//go:build !linux

package watched

func memoryBase(*account) string { return "" }
