"""Networks. They take a norm factory at construction, as torchvision's ResNets take `norm_layer=`."""
