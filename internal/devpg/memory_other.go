//go:build !linux

package devpg

func memoryBase(*account) string { return "" }
