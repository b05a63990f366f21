"""FedSaddle: federated minimax optimisation across parties that keep their data."""
